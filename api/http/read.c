/* What a handler reads from a request. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/http_impl.h"

const char *mlo_request_header(const struct mlo_request *req, const char *name)
{
    return MHD_lookup_connection_value(req->connection, MHD_HEADER_KIND, name);
}

const char *mlo_request_query(const struct mlo_request *req, const char *name)
{
    const char *text = MHD_lookup_connection_value(req->connection, MHD_GET_ARGUMENT_KIND, name);
    return text && text[0] ? text : NULL;
}

enum mlo_status mlo_request_query_i64(const struct mlo_request *req, const char *name, int64_t fallback,
                                      int64_t low, int64_t high, int64_t *out, struct mlo_error *err)
{
    const char *text = mlo_request_query(req, name);
    *out = fallback;
    if (!text)
        return MLO_OK;
    if (!mlo_str_to_i64(text, out) || *out < low || *out > high) {
        mlo_error_set(err, MLO_EINVAL, "%s is '%.60s', not a whole number from %lld to %lld", name, text,
                      (long long)low, (long long)high);
        mlo_error_where(err, "query argument '%s'", name);
        return MLO_EINVAL;
    }
    return MLO_OK;
}

enum mlo_status mlo_request_json(struct mlo_request *req, json_t **out, struct mlo_error *err)
{
    struct mlo_request_state *state = req->state;
    *out = state->json;
    if (state->json_parsed)
        return MLO_OK;
    enum mlo_status status =
        mlo_json_parse(mlo_buf_str(&req->body), req->body.len, "request body", &state->json, err);
    if (status != MLO_OK)
        return status;
    if (!json_is_object(state->json)) {
        mlo_error_set(err, MLO_EINVAL, "the body is not a JSON object");
        mlo_error_where(err, "request body");
        return MLO_EINVAL;
    }
    state->json_parsed = true;
    *out = state->json;
    return MLO_OK;
}

static int hex_value(char c)
{
    return isdigit((unsigned char)c)    ? c - '0'
           : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10
                                        : -1;
}

/* Decodes the whole form once into "name\0value\0…"; a %00 ends nothing early, it becomes U+FFFD's '?'. */
static void parse_form(struct mlo_request *req)
{
    struct mlo_request_state *state = req->state;
    const char *text = mlo_buf_str(&req->body);
    state->form_parsed = true;
    state->form = mlo_arena_alloc(req->arena, 2 * req->body.len + 3) /* a name without a value grows */;
    if (!state->form)
        return;
    char *to = state->form;
    bool in_value = false;
    for (const char *c = text, *end = text + req->body.len; c < end; c++) {
        if (*c == '=' && !in_value) {
            *to++ = '\0';
            in_value = true;
        } else if (*c == '&') {
            if (in_value)
                *to++ = '\0';
            else if (to > state->form && to[-1] != '\0')
                *to++ = '\0', *to++ = '\0';
            in_value = false;
        } else if (*c == '+') {
            *to++ = ' ';
        } else if (*c == '%' && end - c > 2 && hex_value(c[1]) >= 0 && hex_value(c[2]) >= 0) {
            char decoded = (char)(hex_value(c[1]) * 16 + hex_value(c[2]));
            *to++ = decoded ? decoded : '?';
            c += 2;
        } else {
            *to++ = *c ? *c : '?';
        }
    }
    *to = '\0';
    state->form_size = (size_t)(to - state->form);
}

const char *mlo_request_form(struct mlo_request *req, const char *name)
{
    struct mlo_request_state *state = req->state;
    if (!state->form_parsed)
        parse_form(req);
    const char *end = state->form ? state->form + state->form_size : NULL;
    for (const char *at = state->form; at && at < end;) {
        const char *value = at + strlen(at) + 1;
        if (value > end)
            return NULL;
        if (strcmp(at, name) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

const char *mlo_request_cookie(const struct mlo_request *req, const char *name)
{
    return MHD_lookup_connection_value(req->connection, MHD_COOKIE_KIND, name);
}

enum mlo_status mlo_request_if_match(const struct mlo_request *req, int64_t *out, struct mlo_error *err)
{
    const char *text = mlo_request_header(req, "If-Match");
    char number[24];
    if (!text || !text[0]) {
        mlo_error_set(err, MLO_EPRECONDITION_REQUIRED,
                      "a stage is only moved from a state that you have seen");
        mlo_error_where(err, "header If-Match");
        mlo_error_hint(err, "read the stage and send its ETag as If-Match");
        return MLO_EPRECONDITION_REQUIRED;
    }
    size_t length = strlen(text);
    if (length < 3 || length > sizeof number || text[0] != '"' || text[length - 1] != '"')
        goto bad;
    memcpy(number, text + 1, length - 2);
    number[length - 2] = '\0';
    if (mlo_str_to_i64(number, out) && *out >= 0)
        return MLO_OK;
bad:
    mlo_error_set(err, MLO_EPRECONDITION, "If-Match is %.40s, which no stage's ETag ever was", text);
    mlo_error_where(err, "header If-Match");
    mlo_error_hint(err, "send the ETag of the stage as it was given, quotes included");
    return MLO_EPRECONDITION;
}
