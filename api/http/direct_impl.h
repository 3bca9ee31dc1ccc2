/* Private to h_uploads.c and h_direct.c. */
#ifndef MLO_HTTP_DIRECT_IMPL_H
#define MLO_HTTP_DIRECT_IMPL_H

#include "api/http/http_impl.h"
#include "registry/upload.h"

/* Sets the member `direct` of the upload's state, when it is one whose parts go to the bucket; `ask`: with
 * those that have arrived, as the bucket's server says. */
MLO_MUST_USE enum mlo_status mlo_direct_state(struct mlo_request *req, const struct mlo_upload *upload,
                                              bool ask, json_t *state, struct mlo_error *err);
/* Reads such an upload back for a while and keeps how far that came; *done: whole (always, for pieces). */
MLO_MUST_USE enum mlo_status mlo_direct_verify(struct mlo_request *req, struct mlo_upload *upload, bool *done,
                                               struct mlo_error *err);

#endif
