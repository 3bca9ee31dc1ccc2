#include "api/http/multipart.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

/* What the parser holds back, which bounds the length of a line of a part's head. */
enum { HELD_BYTES = 64 << 10 };

struct mlo_multipart {
    struct MHD_PostProcessor *parser;
    mlo_multipart_fn *fn;
    void *arg;
    enum mlo_status status;
    struct mlo_error error;
};

static enum MHD_Result piece(void *cls, enum MHD_ValueKind kind, const char *key, const char *filename,
                             const char *content_type, const char *transfer_encoding, const char *data,
                             uint64_t off, size_t size)
{
    struct mlo_multipart *form = cls;
    const struct mlo_multipart_piece p = {key ? key : "", filename, data, size, off};
    MLO_UNUSED(kind);
    MLO_UNUSED(content_type);
    MLO_UNUSED(transfer_encoding);
    if (form->status == MLO_OK)
        form->status = form->fn(form->arg, &p, &form->error);
    return form->status == MLO_OK ? MHD_YES : MHD_NO;
}

enum mlo_status mlo_multipart_new(struct mlo_request *req, mlo_multipart_fn *fn, void *arg,
                                  struct mlo_multipart **out, struct mlo_error *err)
{
    const char *type = mlo_request_header(req, "Content-Type");
    struct mlo_multipart *form = calloc(1, sizeof *form);
    if (!form)
        return mlo_error_nomem(err);
    form->fn = fn;
    form->arg = arg;
    if (type && strncasecmp(type, "multipart/form-data", 19) == 0)
        form->parser = MHD_create_post_processor(req->connection, HELD_BYTES, piece, form);
    if (!form->parser) {
        free(form);
        mlo_error_set(err, MLO_EUSAGE, "this is no form with files");
        mlo_error_where(err, "header Content-Type");
        mlo_error_hint(err, "a page sends multipart/form-data; programs upload by the API (docs/api.md)");
        return MLO_EUSAGE;
    }
    *out = form;
    return MLO_OK;
}

static enum mlo_status failed(struct mlo_multipart *form, const char *what, struct mlo_error *err)
{
    if (form->status == MLO_OK) {
        mlo_error_set(err, MLO_EUSAGE, "%s", what);
        mlo_error_hint(err, "load the page again and repeat");
        return MLO_EUSAGE;
    }
    if (err)
        *err = form->error;
    return form->status;
}

enum mlo_status mlo_multipart_feed(struct mlo_multipart *form, const void *bytes, size_t size,
                                   struct mlo_error *err)
{
    return MHD_post_process(form->parser, bytes, size) == MHD_YES ? MLO_OK
                                                                  : failed(form, "the form is damaged", err);
}

enum mlo_status mlo_multipart_end(struct mlo_multipart *form, struct mlo_error *err)
{
    struct MHD_PostProcessor *parser = form->parser;
    form->parser = NULL;
    return MHD_destroy_post_processor(parser) == MHD_YES && form->status == MLO_OK
               ? MLO_OK
               : failed(form, "the form was cut off", err);
}

void mlo_multipart_free(struct mlo_multipart *form)
{
    if (form && form->parser) {
        form->status = MLO_ECANCELLED; /* nothing is to be called any more */
        MHD_destroy_post_processor(form->parser);
    }
    free(form);
}
