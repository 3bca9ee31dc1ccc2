/* What a model takes and gives, as a document, and whether one may stand in the place of another:
 *
 *     {"inputs":  [{"name": "x", "type": "float32", "shape": [1, "N", null] | null, "optional": true}],
 *      "outputs": [{"name": "y", "type": "float32", "shape": […]}],
 *      "labels":  {"count": 10, "digest": "sha256:…", "names": ["cat", …]} | null}
 *
 * A dim is a number, a name (the same name is the same number everywhere), or null: any. */
#ifndef MLO_BASE_SIGNATURE_H
#define MLO_BASE_SIGNATURE_H

#include <jansson.h>

#include "base/error.h"

#define MLO_SIGNATURE_MAX_BYTES ((size_t)4 << 20) /* of its canonical text */

/* Whether it has this form; MLO_EINVAL names the member. "labels" may be absent. */
MLO_MUST_USE enum mlo_status mlo_signature_check(const json_t *signature, struct mlo_error *err);

/* Whether `next` can be put where consumers use `present`: it takes all that `present` takes, and keeps every
 * promise that `present` makes.
 *   - every input of `present` is there, of the same type, and accepts at least the shapes that it accepts;
 *     further inputs are optional; the order does not matter
 *   - the outputs are the same, in the same order: names and types; a dim that is fixed, or the same as one
 *     of the inputs, stays so
 *   - every label of `present` has the same index; further ones may follow
 * If not, `why` says the first difference. */
bool mlo_signature_compatible(const json_t *present, const json_t *next, char *why, size_t size);

#endif
