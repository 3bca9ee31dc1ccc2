/* The pages as somebody who is signed in finds them, link by link, and the forms on them: what can be sent to
 * the server from there is known from there. */
#ifndef MLO_TESTS_CRAWL_FIXTURE_H
#define MLO_TESTS_CRAWL_FIXTURE_H

#include "api/web/web.h"
#include "tests/integration/api/inject_fixture.h"

struct crawl {
    struct probe *p;
    json_t *seen;   /* paths, as members */
    json_t *queue;  /* paths */
    json_t *forms;  /* method and action without numbers: {method, action, fields: {name: value}} */
    json_t *fields; /* names of fields of any form */
    size_t next, escaped;
    unsigned most; /* pages */
};

/* Signs in with a token of its own, which no request before has revoked. */
static inline void probe_sign_in(struct probe *p)
{
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_error err = {0};
    char token[MLO_TOKEN_TEXT_SIZE], body[128], cookie[200];
    assert_mlo_ok(mlo_token_create(p->api->pg->conn, &system, "crawler", MLO_ADMIN, 0, 0, token, NULL, &err),
                  &err);
    snprintf(body, sizeof body, "token=%s", token);
    assert_null(wire_ask(&p->wire, &p->a, "POST", "/login", "", body, strlen(body)));
    assert_int_equal(p->a.status, 303);
    assert_true(wire_header(&p->a, "Set-Cookie", cookie, sizeof cookie));
    snprintf(p->cookie, sizeof p->cookie, "Cookie: %.*s\r\n", (int)strcspn(cookie, ";"), cookie);
    assert_null(wire_ask(&p->wire, &p->a, "GET", "/", p->cookie, NULL, 0));
    const char *at = strstr(mlo_buf_str(&p->a.body), "name=\"csrf\" value=\"");
    assert_non_null(at);
    at += strlen("name=\"csrf\" value=\"");
    snprintf(p->csrf, sizeof p->csrf, "%.*s", (int)strcspn(at, "\""), at);
}

/* A page asks to sign in: the session ended on the way, as when a form revoked its token. */
static inline bool probe_signed_out(const struct probe *p)
{
    return p->a.status == 303 && strstr(mlo_buf_str(&p->a.headers), "\r\nLocation: /login");
}

/* The value of an attribute between `from` and `to`, without its escapes. */
static inline bool attribute(const char *from, const char *to, const char *name, struct mlo_buf *out)
{
    static const struct {
        const char *escape, *text;
    } escapes[] = {{"&amp;", "&"}, {"&quot;", "\""}, {"&lt;", "<"}, {"&gt;", ">"}, {"&#39;", "'"}};
    char mark[40];
    int n = snprintf(mark, sizeof mark, " %s=\"", name);
    const char *at = strstr(from, mark);
    mlo_buf_reset(out);
    if (!at || at >= to)
        return false;
    for (at += n; *at && *at != '"';) {
        size_t i = 0;
        while (i < MLO_COUNT(escapes) && !mlo_str_starts(at, escapes[i].escape))
            i++;
        if (i < MLO_COUNT(escapes)) {
            mlo_buf_puts(out, escapes[i].text);
            at += strlen(escapes[i].escape);
        } else {
            mlo_buf_putc(out, *at++);
        }
    }
    return true;
}

static inline void crawl_add(struct crawl *c, const char *path)
{
    if (path[0] != '/' || path[1] == '/' || mlo_str_starts(path, "/assets/") ||
        mlo_str_starts(path, "/logout") || mlo_str_starts(path, "/artifact/") ||
        json_object_get(c->seen, path))
        return;
    if (json_object_set_new(c->seen, path, json_true()) == 0) /* not what is no UTF-8: no page writes that */
        json_array_append_new(c->queue, json_string(path));
}

static inline void crawl_links(struct crawl *c, const char *html)
{
    struct mlo_buf path = MLO_BUF_INIT;
    for (const char *at = html; (at = strstr(at, " href=\"")); at++)
        if (attribute(at, at + 8, "href", &path)) {
            char *end = strchr(path.data, '#');
            if (end)
                *end = '\0';
            crawl_add(c, path.data);
        }
    mlo_buf_clear(&path);
}

static inline void crawl_form(struct crawl *c, const char *from, const char *to, const char *page)
{
    struct mlo_buf text = MLO_BUF_INIT, value = MLO_BUF_INIT;
    const char *tag_end = strchr(from, '>');
    json_t *form = json_object(), *fields = json_object();
    char key[400];
    size_t n = 0;
    attribute(from, tag_end, "method", &text);
    json_object_set_new(form, "method", json_string(mlo_buf_str(&text)));
    if (!attribute(from, tag_end, "action", &text))
        mlo_buf_printf(&text, "%.*s", (int)strcspn(page, "?"), page);
    json_object_set_new(form, "action", json_string(mlo_buf_str(&text)));
    for (const char *at = strchr(from + 1, '<'); at && at < to; at = strchr(at + 1, '<')) {
        tag_end = strchr(at, '>');
        if (!tag_end || !attribute(at, tag_end, "name", &text))
            continue;
        const char *option = mlo_str_starts(at, "<select") ? strstr(at, "<option") : NULL;
        if (!attribute(option ? option : at, option ? strchr(option, '>') : tag_end, "value", &value))
            mlo_buf_puts(&value, "");
        json_object_set_new(fields, text.data, json_string(mlo_buf_str(&value)));
        json_object_set_new(c->fields, text.data, json_true());
    }
    json_object_set_new(form, "fields", fields);
    const char *action = mlo_json_str(form, "action", "");
    n += (size_t)snprintf(key, sizeof key, "%s ", mlo_json_str(form, "method", ""));
    for (; *action && n + 1 < sizeof key; action++) /* one of those that differ by a number is enough */
        if (!isdigit((unsigned char)*action))
            key[n++] = *action;
    key[n] = '\0';
    json_object_set_new(c->forms, key, form);
    mlo_buf_clear(&text);
    mlo_buf_clear(&value);
}

static inline void crawl_forms(struct crawl *c, const char *html, const char *page)
{
    for (const char *at = html, *end; (at = strstr(at, "<form")) && (end = strstr(at, "</form>")); at = end)
        crawl_form(c, at, end, page);
}

static inline void crawl_page(struct crawl *c, const char *path)
{
    struct probe *p = c->p;
    struct mlo_buf url = MLO_BUF_INIT;
    for (const char *at = path; *at; at++) /* as a browser sends it */
        if ((unsigned char)*at <= ' ' || (unsigned char)*at >= 0x7f || strchr("\"<>", *at))
            mlo_buf_printf(&url, "%%%02X", (unsigned char)*at);
        else
            mlo_buf_putc(&url, *at);
    for (int i = 0; i < 2; i++) {
        probe_send(p, "GET", mlo_buf_str(&url), p->cookie, NULL, 0, "a link");
        if (!probe_signed_out(p))
            break;
        probe_sign_in(p);
    }
    mlo_buf_clear(&url);
    if (!strstr(mlo_buf_str(&p->a.headers), "text/html"))
        return;
    const char *html = mlo_buf_str(&p->a.body);
    for (const char *at = html; (at = strstr(at, "&lt;zq9")); at++)
        c->escaped++;
    crawl_links(c, html);
    crawl_forms(c, html, path);
}

/* Every page that links lead to, up to `most`. */
static inline void crawl_pages(struct crawl *c)
{
    static const char *const first[] = {"/",
                                        "/projects",
                                        "/datasets",
                                        "/tokens",
                                        "/runs",
                                        "/workers",
                                        "/audit",
                                        "/audit/-",
                                        "/search/demo",
                                        "/compare/demo/cnn?a=1/source",
                                        "/schedules/demo",
                                        "/usage/demo",
                                        "/promotions/demo/cnn",
                                        "/models/demo/cnn"};
    json_object_clear(c->seen);
    json_array_clear(c->queue);
    for (size_t i = 0; i < MLO_COUNT(first); i++)
        crawl_add(c, first[i]);
    for (c->next = 0; c->next < json_array_size(c->queue) && c->next < c->most; c->next++)
        crawl_page(c, json_string_value(json_array_get(c->queue, c->next)));
}

static inline void crawl_free(struct crawl *c)
{
    json_decref(c->seen);
    json_decref(c->queue);
    json_decref(c->forms);
    json_decref(c->fields);
}

/* --- forms --------------------------------------------------------------------------------------------- */

/* Fields as a browser sends them, HERE in the one called `place`, the session's own secret in its field. */
static inline void put_fields(const struct probe *p, const json_t *fields, const char *place,
                              struct mlo_buf *out)
{
    const char *name;
    json_t *value;
    mlo_buf_reset(out);
    json_object_foreach((json_t *)fields, name, value)
    {
        const char *text = strcmp(name, "csrf") == 0 ? p->csrf : json_string_value(value);
        if (out->len)
            mlo_buf_putc(out, '&');
        put_url(out, name, strlen(name));
        mlo_buf_putc(out, '=');
        if (strcmp(name, place) == 0)
            mlo_buf_puts(out, HERE);
        else
            put_url(out, text, strlen(text));
    }
}

static inline void probe_form(struct probe *p, const char *method, const char *action, const json_t *fields,
                              unsigned most)
{
    struct mlo_buf text = MLO_BUF_INIT, filled = MLO_BUF_INIT, headers = MLO_BUF_INIT, path = MLO_BUF_INIT;
    bool post = strcasecmp(method, "post") == 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)fields, name, value) for (size_t i = 0; i <= (most ? most : LONG_TEXT); i++)
    {
        size_t which = !most || i == 0 ? i : probe_random(p) % (LONG_TEXT + 1);
        put_fields(p, fields, name, &text);
        if (!put_text(&filled, mlo_buf_str(&text), IN_URL, which))
            continue;
        mlo_buf_reset(&headers);
        mlo_buf_printf(&headers, "%s%s", p->cookie,
                       post ? "Content-Type: application/x-www-form-urlencoded\r\n" : "");
        mlo_buf_reset(&path);
        mlo_buf_puts(&path, action);
        if (!post)
            mlo_buf_printf(&path, "?%s", mlo_buf_str(&filled));
        probe_send(p, post ? "POST" : "GET", mlo_buf_str(&path), mlo_buf_str(&headers),
                   post ? filled.data : NULL, filled.len, text_name(which));
        if (probe_signed_out(p))
            probe_sign_in(p);
    }
    mlo_buf_clear(&text);
    mlo_buf_clear(&filled);
    mlo_buf_clear(&headers);
    mlo_buf_clear(&path);
}

/* The route of a form: its row in the table of the pages; -1: none. */
static inline int form_route(const char *method, const char *action)
{
    const struct mlo_http_module *pages = mlo_web_module();
    for (size_t i = 0; i < pages->count; i++) {
        const char *pattern = pages->routes[i].path, *at = action;
        if (strcasecmp(pages->routes[i].method, method) != 0)
            continue;
        while (*pattern && *at && *at != '?') {
            if (*pattern == '{') {
                pattern += strcspn(pattern, "/");
                at += strcspn(at, "/?");
            } else if (*pattern++ != *at++) {
                pattern = "-";
                break;
            }
        }
        if (!*pattern && (!*at || *at == '?'))
            return (int)i;
    }
    return -1;
}

#endif
