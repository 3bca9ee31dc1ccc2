/* XML answers of S3, read with expat: a stream of starts, texts and ends, no tree. Expat fetches nothing; a
 * document type, with which entities could be declared, is refused. */
#include <expat.h>
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

enum { DEPTH_MAX = 16, NAME_MAX_BYTES = 64, TEXT_MAX_BYTES = 8192 };

struct reader {
    XML_Parser parser;
    char names[DEPTH_MAX][NAME_MAX_BYTES];
    size_t depth;
    bool leaf; /* no child so far */
    struct mlo_buf text;
    mlo_s3_xml_fn *fn;
    void *arg;
    enum mlo_status status;
    struct mlo_error *err;
};

static void stop(struct reader *r, const char *why)
{
    if (r->status == MLO_OK)
        r->status = mlo_error_set(r->err, MLO_EFORMAT, "the S3 server's answer %s", why);
    XML_StopParser(r->parser, XML_FALSE);
}

static void on_start(void *arg, const char *name, const char **attributes)
{
    struct reader *r = arg;
    MLO_UNUSED(attributes);
    if (r->depth == DEPTH_MAX || strlen(name) >= NAME_MAX_BYTES) {
        stop(r, "is nested too deeply, or has names that are too long");
        return;
    }
    snprintf(r->names[r->depth++], NAME_MAX_BYTES, "%s", name);
    r->leaf = true;
    mlo_buf_reset(&r->text);
}

static void on_text(void *arg, const char *text, int size)
{
    struct reader *r = arg;
    if (r->text.len + (size_t)size > TEXT_MAX_BYTES)
        stop(r, "has a text that is too long");
    else
        mlo_buf_append(&r->text, text, (size_t)size);
}

static void on_end(void *arg, const char *name)
{
    struct reader *r = arg;
    if (r->status != MLO_OK) /* what was stopped may still be told of an end */
        return;
    const char *parent = --r->depth ? r->names[r->depth - 1] : "";
    if (!mlo_buf_ok(&r->text))
        r->status = mlo_error_nomem(r->err);
    else
        r->status = r->fn(r->arg, parent, name, r->leaf ? mlo_buf_str(&r->text) : NULL, r->err);
    r->leaf = false;
    mlo_buf_reset(&r->text);
    if (r->status != MLO_OK)
        XML_StopParser(r->parser, XML_FALSE);
}

static void on_doctype(void *arg, const char *name, const char *system, const char *public, int subset)
{
    MLO_UNUSED(name);
    MLO_UNUSED(system);
    MLO_UNUSED(public);
    MLO_UNUSED(subset);
    stop(arg, "declares a document type");
}

enum mlo_status mlo_s3_xml(const struct mlo_buf *bytes, mlo_s3_xml_fn *fn, void *arg, struct mlo_error *err)
{
    struct reader r = {.parser = XML_ParserCreate(NULL), .fn = fn, .arg = arg, .err = err};
    if (!r.parser)
        return mlo_error_nomem(err);
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, on_start, on_end);
    XML_SetCharacterDataHandler(r.parser, on_text);
    XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
    if (bytes->len > MLO_S3_ANSWER_MAX)
        r.status = mlo_error_set(err, MLO_EFORMAT, "the S3 server's answer has %zu bytes", bytes->len);
    else if (XML_Parse(r.parser, mlo_buf_str(bytes), (int)bytes->len, 1) != XML_STATUS_OK &&
             r.status == MLO_OK)
        r.status = mlo_error_set(err, MLO_EFORMAT, "the S3 server's answer is no XML: %s in line %lu",
                                 XML_ErrorString(XML_GetErrorCode(r.parser)),
                                 (unsigned long)XML_GetCurrentLineNumber(r.parser));
    XML_ParserFree(r.parser);
    mlo_buf_clear(&r.text);
    return r.status;
}

void mlo_s3_xml_escape(struct mlo_buf *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            mlo_buf_puts(out, "&amp;");
            break;
        case '<':
            mlo_buf_puts(out, "&lt;");
            break;
        case '>':
            mlo_buf_puts(out, "&gt;");
            break;
        case '"':
            mlo_buf_puts(out, "&quot;");
            break;
        default:
            mlo_buf_putc(out, *text);
        }
    }
}
