/* Forms with files (multipart/form-data, RFC 7578), taken in while they arrive: nothing of a file is kept
 * here. The parsing is libmicrohttpd's. */
#ifndef MLO_HTTP_MULTIPART_H
#define MLO_HTTP_MULTIPART_H

#include "api/http/route.h"

struct mlo_multipart;

/* A piece of a field or file. Pieces of one follow each other, the first with offset 0; an empty one is one
 * piece of no bytes. */
struct mlo_multipart_piece {
    const char *name;
    const char *filename; /* of a file, as the browser says it: not to be trusted; NULL: a field */
    const void *bytes;
    size_t size;
    uint64_t offset;
};
typedef enum mlo_status mlo_multipart_fn(void *arg, const struct mlo_multipart_piece *piece,
                                         struct mlo_error *err);

/* For the body of this request; `fn` is called from mlo_multipart_feed. MLO_EUSAGE when the request's
 * Content-Type is none that a form has. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_multipart_new(struct mlo_request *req, mlo_multipart_fn *fn, void *arg,
                                               struct mlo_multipart **out, struct mlo_error *err);
/* The next bytes of the body. What `fn` fails with is returned; MLO_EUSAGE for a body that is no such form.
 */
MLO_MUST_USE enum mlo_status mlo_multipart_feed(struct mlo_multipart *form, const void *bytes, size_t size,
                                                struct mlo_error *err);
/* The body is over: what was still held back goes to `fn`. MLO_EUSAGE where it was cut off. Frees nothing. */
MLO_MUST_USE enum mlo_status mlo_multipart_end(struct mlo_multipart *form, struct mlo_error *err);
void mlo_multipart_free(struct mlo_multipart *form); /* NULL is allowed */

#endif
