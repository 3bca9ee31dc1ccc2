/* The signature of a model as consumers see it: what it takes and gives (graph/signature.h), and the labels
 * that its outputs count by. */
#ifndef MLO_STEPS_SIGNATURE_H
#define MLO_STEPS_SIGNATURE_H

#include "graph/graph.h"
#include "graph/signature.h"

#define MLO_LABELS_MAX 100000          /* labels */
#define MLO_LABELS_MAX_BYTES (1 << 20) /* of the file */

/* The labels of a file, in order of their index: {"count", "digest": of their canonical JSON, "names":[…]}.
 * The file is a JSON array of texts, a JSON object from "0", "1"… to texts, or one label a line. MLO_EFORMAT
 * says what is wrong with it, MLO_ETOOBIG when it is more than a label set. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_labels_read(const char *path, json_t **out, struct mlo_error *err);

/* {"labels": as above}, or {"labels": {"unreadable": why}}: a label set that cannot be read is one, too.
 * NULL: out of memory. */
json_t *mlo_labels_describe(const char *path);

/* {"inputs", "outputs"} of a model's file. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_signature_of_model(const char *path, json_t **out, struct mlo_error *err);

#endif
