/* Answers of the API in gzip, for who takes it. Pages are not: a page shows what its address says beside a
 * secret of the session, and the length of the two compressed together would tell of the secret (BREACH). */
#include <zlib.h>

#include "api/http/http_impl.h"
#include "base/accept.h"

enum { WORTH_IT = 1024, LEVEL = 1, GZIP_WINDOW = 15 + 16 };

/* Whether an Accept-Encoding has gzip (or *), and not with q=0. */
static bool takes_gzip(const char *accept)
{
    double gzip = mlo_accept_quality(accept, "gzip");
    return gzip > 0 || (gzip < 0 && mlo_accept_quality(accept, "*") > 0);
}

static bool compress_to(const struct mlo_buf *in, struct mlo_buf *out)
{
    z_stream z = {.next_in = (Bytef *)in->data, .avail_in = (uInt)in->len};
    if (deflateInit2(&z, LEVEL, Z_DEFLATED, GZIP_WINDOW, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    unsigned char piece[16384];
    int result;
    do {
        z.next_out = piece;
        z.avail_out = sizeof piece;
        result = deflate(&z, Z_FINISH);
        mlo_buf_append(out, piece, sizeof piece - z.avail_out);
    } while (result == Z_OK);
    deflateEnd(&z);
    return result == Z_STREAM_END && mlo_buf_ok(out) && out->len < in->len;
}

void mlo_http_gzip(struct mlo_request *req)
{
    static const char *const kinds[] = {"application/json", "application/problem+json", "text/"};
    struct mlo_buf small = MLO_BUF_INIT;
    bool kind = false;
    for (size_t i = 0; i < MLO_COUNT(kinds); i++)
        kind = kind || (req->content_type && mlo_str_starts(req->content_type, kinds[i]));
    if (!kind || req->out.len < WORTH_IT || req->out.len > UINT32_MAX || !req->route ||
        req->route->kind == MLO_ROUTE_PAGE)
        return;
    mlo_reply_header(req, "Vary", "Accept-Encoding");
    if (takes_gzip(mlo_request_header(req, "Accept-Encoding")) && compress_to(&req->out, &small)) {
        mlo_buf_clear(&req->out);
        req->out = small;
        mlo_reply_header(req, "Content-Encoding", "gzip");
        return;
    }
    mlo_buf_clear(&small);
}
