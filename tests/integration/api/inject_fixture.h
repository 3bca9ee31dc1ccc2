/* Texts that try to be more than texts, put into every place where the contract or a form of the pages takes
 * one. Places are found in api/openapi.yaml and in the pages themselves: a new route or form is covered by
 * itself. */
#ifndef MLO_TESTS_INJECT_FIXTURE_H
#define MLO_TESTS_INJECT_FIXTURE_H

#include "tests/integration/api/schema_fixture.h"
#include "tests/integration/api/world_fixture.h"
#include "tests/wire_fixture.h"

#include <ctype.h>

#define HERE "@zq9@" /* where a text goes */
#define INJECT_DEPTH 7

enum text_kind { TEXT, RAW_JSON };

/* `<zq9` and `"zq9` on a page are markup that a client wrote; escaped they are not there. */
#define MARKUP "a<zq9>\"zq9='&#60;zq9"
#define TEXT_ROW(name_, text_)                                                                               \
    {                                                                                                        \
        name_, TEXT, text_, sizeof text_ - 1                                                                 \
    }
#define JSON_ROW(name_, text_)                                                                               \
    {                                                                                                        \
        name_, RAW_JSON, text_, sizeof text_ - 1                                                             \
    }
static const struct injected {
    const char *name;
    enum text_kind kind;
    const char *text;
    size_t size;
} INJECTED[] = {
    TEXT_ROW("markup", MARKUP),
    TEXT_ROW("script", "a</title></textarea><script>zq9</script><zq9 \"zq9"),
    TEXT_ROW("address", "javascript:zq9()//\"zq9"),
    TEXT_ROW("SQL that ends a statement", "szq9'; DROP TABLE mlopt.project; --"),
    TEXT_ROW("SQL that is always true", "szq9' OR '1'='1"),
    TEXT_ROW("SQL in a number", "1 OR 1=1"),
    TEXT_ROW("SQL that waits", "1; SELECT pg_sleep(100)"),
    TEXT_ROW("SQL quoted twice", "\\'zq9''\";SELECT $1::text; $$zq9$$"),
    TEXT_ROW("a path upwards", "../../../../../../etc/passwd"),
    TEXT_ROW("a path that is encoded", "..%2f..%2f%2e%2e%5cetc%2fpasswd"),
    TEXT_ROW("a path with a NUL", "cnn\0/../x"),
    TEXT_ROW("dots", ".."),
    TEXT_ROW("headers", "szq9\r\nX-Zq9: 1\r\n\r\nHTTP/1.1 200 OK\r\n"),
    TEXT_ROW("bytes that are no UTF-8", "szq9\xff\xfe\xc3("),
    TEXT_ROW("a surrogate in UTF-8", "szq9\xed\xa0\x80"),
    TEXT_ROW("an overlong slash", "..\xc0\xaf..\xe0\x80\xaf"),
    TEXT_ROW("a text that turns around", "szq9\xe2\x80\xae\xe2\x81\xa6zq9\xef\xbb\xbf"),
    TEXT_ROW("control characters", "szq9\x01\x07\x08\x1b[31m\x7f\t\n"),
    TEXT_ROW("a format", "%s%n%99999999x%p{0}${zq9}{{7*7}}"),
    TEXT_ROW("nothing", ""),
    TEXT_ROW("a space", " "),
    TEXT_ROW("a number below zero", "-1"),
    TEXT_ROW("the largest number", "9223372036854775807"),
    TEXT_ROW("a number that is too large", "9223372036854775808"),
    TEXT_ROW("a number with an exponent", "1e308"),
    TEXT_ROW("no number", "NaN"),
    TEXT_ROW("a time that never was", "2026-02-31T25:61:61Z"),
    TEXT_ROW("a time far off", "294277-01-01T00:00:00Z"),
    JSON_ROW("a number", "0"),
    JSON_ROW("a number below zero", "-9223372036854775808"),
    JSON_ROW("a number that is too large", "18446744073709551616"),
    JSON_ROW("a large real number", "1.7976931348623157e308"),
    JSON_ROW("null", "null"),
    JSON_ROW("true", "true"),
    JSON_ROW("an array", "[]"),
    JSON_ROW("an array of arrays", "[[[[[[\"szq9\"]]]]]]"),
    JSON_ROW("an object", "{}"),
    JSON_ROW("an object with markup", "{\"a<zq9>\\\"zq9\": \"a<zq9>\\\"zq9\"}"),
    JSON_ROW("an object of objects", "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}}}"),
    JSON_ROW("half of a surrogate", "\"\\ud800\""),
    JSON_ROW("a NUL", "\"szq9\\u0000zq9\""),
};
#define LONG_TEXT MLO_COUNT(INJECTED) /* and one of 100,000 letters */

struct probe {
    struct api *api;
    struct wire wire;
    struct reply a;
    json_t *codes; /* what may be a problem's code */
    char cookie[256], csrf[96];
    uint64_t random;
    struct mlo_buf wrong; /* a line each */
    unsigned findings;
    size_t sent, taken;
};

static inline uint64_t probe_random(struct probe *p)
{
    p->random ^= p->random << 13; /* xorshift64 (Marsaglia 2003) */
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return p->random >> 16;
}

static inline void probe_wrong(struct probe *p, const char *what, const char *method, const char *path,
                               const char *name)
{
    if (p->findings++ < 40)
        mlo_buf_printf(&p->wrong, "%s: %s %.300s with %s: %ld %.300s\n", what, method, path, name,
                       p->a.status, mlo_buf_str(&p->a.body));
}

/* Sends it, and looks at what every answer must be. */
static inline void probe_send(struct probe *p, const char *method, const char *path, const char *headers,
                              const char *body, size_t size, const char *name)
{
    const char *wrong = NULL;
    for (int again = 0; again < 2; again++) {
        bool fresh = p->wire.fd < 0;
        wrong = wire_ask(&p->wire, &p->a, method, path, headers, body, size);
        if (!wrong || fresh)
            break;
        if (p->a.status) /* a stream has no length: its connection ends it */
            wrong = NULL;
        wire_close(&p->wire);
        if (!wrong)
            break;
    }
    p->sent++;
    if (wrong && !p->a.status) {
        wire_close(&p->wire);
        probe_wrong(p, wrong, method, path, name);
        return;
    }
    if (wrong)
        wire_close(&p->wire);
    p->taken += p->a.status < 400;
    if (p->a.status >= 500)
        probe_wrong(p, "a failure of the server", method, path, name);
    if (strcasestr(mlo_buf_str(&p->a.headers), "\nX-Zq9"))
        probe_wrong(p, "a header that the client wrote", method, path, name);
    bool page = strstr(mlo_buf_str(&p->a.headers), "text/html");
    const char *code = mlo_json_str(p->a.json, "code", NULL);
    if (p->a.status >= 400 && !page && (!code || !json_object_get(p->codes, code)))
        probe_wrong(p, "a refusal without a code", method, path, name);
    if (page && (strstr(mlo_buf_str(&p->a.body), "<zq9") || strstr(mlo_buf_str(&p->a.body), "\"zq9")))
        probe_wrong(p, "markup that the client wrote", method, path, name);
}

/* --- a text in its place ------------------------------------------------------------------------------- */

static inline void put_url(struct mlo_buf *out, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (isalnum((unsigned char)text[i]) || strchr("-._~", text[i] ? text[i] : '%'))
            mlo_buf_putc(out, text[i]);
        else
            mlo_buf_printf(out, "%%%02X", (unsigned char)text[i]);
}

static inline void put_json(struct mlo_buf *out, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] == '"' || text[i] == '\\')
            mlo_buf_printf(out, "\\%c", text[i]);
        else if ((unsigned char)text[i] < 0x20)
            mlo_buf_printf(out, "\\u%04x", (unsigned char)text[i]);
        else
            mlo_buf_putc(out, text[i]);
}

enum form_of_place { IN_URL, IN_HEADER, IN_JSON };

/* `in` with the text where HERE is; false: it cannot be there. */
static inline bool put_text(struct mlo_buf *out, const char *in, enum form_of_place form, size_t which)
{
    static char letters[100000];
    const char *at = strstr(in, HERE);
    if (!letters[0])
        memset(letters, 'A', sizeof letters);
    const struct injected all = {"many letters", TEXT, letters, form == IN_JSON ? sizeof letters : 5000};
    const struct injected *what = which == LONG_TEXT ? &all : &INJECTED[which];
    mlo_buf_reset(out);
    if (!at || (what->kind == RAW_JSON && form != IN_JSON))
        return false;
    if (form == IN_HEADER && (memchr(what->text, '\n', what->size) || memchr(what->text, '\0', what->size)))
        return false; /* it would be another request */
    const char *end = at + strlen(HERE);
    bool whole = at > in && at[-1] == '"' && *end == '"'; /* of a JSON text */
    if (what->kind == RAW_JSON && (!whole || end[1] == ':'))
        return false;
    mlo_buf_append(out, in, (size_t)(at - in) - (what->kind == RAW_JSON));
    if (what->kind == RAW_JSON || form == IN_HEADER)
        mlo_buf_append(out, what->text, what->size);
    else if (form == IN_JSON)
        put_json(out, what->text, what->size);
    else
        put_url(out, what->text, what->size);
    mlo_buf_puts(out, end + (what->kind == RAW_JSON));
    return true;
}

static inline const char *text_name(size_t which)
{
    return which == LONG_TEXT ? "many letters" : INJECTED[which].name;
}

/* --- places in a body ---------------------------------------------------------------------------------- */

/* Adds what a schema says of the members of an object: its own, and of what it is put together of. */
static inline void members_of(const json_t *root, const json_t *schema, json_t *out, const json_t **others)
{
    static const char *const parts[] = {"allOf", "anyOf"};
    const char *key;
    json_t *value;
    size_t i;
    schema = schema_resolve(root, schema);
    json_object_foreach(json_object_get(schema, "properties"), key, value) json_object_set(out, key, value);
    if (json_is_object(json_object_get(schema, "additionalProperties")))
        *others = json_object_get(schema, "additionalProperties");
    for (size_t k = 0; k < MLO_COUNT(parts); k++)
        json_array_foreach(json_object_get(schema, parts[k]), i, value) members_of(root, value, out, others);
}

static inline const json_t *items_of(const json_t *root, const json_t *schema)
{
    json_t *part;
    size_t i;
    schema = schema_resolve(root, schema);
    const json_t *items = json_object_get(schema, "items");
    json_array_foreach(json_object_get(schema, "anyOf"), i, part) items =
        items ? items : items_of(root, part);
    return items;
}

/* Appends `base` with HERE in the stead of each of its parts, one at a time, of those too that only the
 * schema knows: an array of documents. */
static inline void trials_of(const json_t *root, const json_t *schema, const json_t *base, int depth,
                             json_t *out)
{
    json_t *members = json_object(), *sub, *one, *copy;
    const json_t *others = NULL, *items = items_of(root, schema);
    const char *key;
    size_t i;
    json_array_append_new(out, json_string(HERE));
    if (depth == INJECT_DEPTH) {
        json_decref(members);
        return;
    }
    members_of(root, schema, members, &others);
    if (json_is_object(base)) {
        json_t *value;
        json_object_foreach((json_t *)base, key, value) if (!json_object_get(members, key))
            json_object_set_new(members, key, others ? json_incref((json_t *)others) : json_object());
    }
    json_t *member;
    json_object_foreach(members, key, member)
    {
        sub = json_array();
        trials_of(root, member, json_object_get(base, key), depth + 1, sub);
        json_array_foreach(sub, i, one)
        {
            copy = json_is_object(base) ? json_copy((json_t *)base) : json_object();
            json_object_set(copy, key, one);
            json_array_append_new(out, copy);
        }
        json_decref(sub);
    }
    if (others) { /* members of any name */
        copy = json_is_object(base) ? json_copy((json_t *)base) : json_object();
        void *first = json_object_iter(copy);
        json_object_set_new(copy, HERE,
                            first ? json_incref(json_object_iter_value(first)) : json_string("x"));
        json_array_append_new(out, copy);
    }
    if (items) {
        sub = json_array();
        trials_of(root, items, json_array_get(base, 0), depth + 1, sub);
        json_array_foreach(sub, i, one) json_array_append_new(out, json_pack("[O]", one));
        json_decref(sub);
    }
    json_decref(members);
}

/* --- operations ---------------------------------------------------------------------------------------- */

struct call {
    const struct mlo_operation *of;
    const json_t *operation;
    char upload[64]; /* the id of one that is under way; "": none is needed */
    const char *type;
    const json_t *schema, *example; /* of the body */
};

/* The example of a parameter as text, or HERE. */
static inline void put_example(struct mlo_buf *out, const struct call *c, const json_t *parameter, bool here,
                               bool url)
{
    const json_t *example = json_object_get(parameter, "example");
    char *text = here                      ? strdup(HERE)
                 : json_is_string(example) ? strdup(json_string_value(example))
                 : example                 ? json_dumps(example, JSON_ENCODE_ANY)
                                           : strdup("");
    if (c->upload[0] && strcmp(mlo_json_str(parameter, "name", ""), "id") == 0 && !here)
        mlo_buf_puts(out, c->upload);
    else if (url && !here)
        put_url(out, text, strlen(text));
    else
        mlo_buf_puts(out, text);
    free(text);
}

/* The request with its examples; HERE instead of the parameter `place` (-1: of none). `headers` gets lines.
 */
static inline void request_of(const json_t *contract, const struct call *c, int place, struct mlo_buf *path,
                              struct mlo_buf *headers, enum form_of_place *form)
{
    struct mlo_buf query = MLO_BUF_INIT;
    json_t *item;
    size_t i;
    mlo_buf_reset(path);
    mlo_buf_reset(headers);
    *form = IN_URL;
    for (const char *at = c->of->path; *at;) { /* segments in braces are parameters */
        size_t n = strcspn(at, "{");
        mlo_buf_append(path, at, n);
        at += n;
        if (!*at)
            break;
        n = strcspn(at, "}");
        json_array_foreach(json_object_get(c->operation, "parameters"), i, item)
        {
            const json_t *parameter = schema_resolve(contract, item);
            const char *name = mlo_json_str(parameter, "name", "");
            if (strlen(name) == n - 1 && strncmp(name, at + 1, n - 1) == 0 &&
                strcmp(mlo_json_str(parameter, "in", ""), "path") == 0)
                put_example(path, c, parameter, (int)i == place, true);
        }
        at += n + 1;
    }
    json_array_foreach(json_object_get(c->operation, "parameters"), i, item)
    {
        const json_t *parameter = schema_resolve(contract, item);
        const char *name = mlo_json_str(parameter, "name", ""), *in = mlo_json_str(parameter, "in", "");
        bool here = (int)i == place;
        if (strcmp(in, "path") == 0 || (!here && !json_object_get(parameter, "example")))
            continue;
        bool header = strcmp(in, "header") == 0;
        mlo_buf_printf(header ? headers : &query, header ? "%s: " : "%s=", name);
        put_example(header ? headers : &query, c, parameter, here, !header);
        mlo_buf_puts(header ? headers : &query, header ? "\r\n" : "&");
        if (here && header)
            *form = IN_HEADER;
    }
    if (query.len)
        mlo_buf_printf(path, "?%.*s", (int)query.len - 1, mlo_buf_str(&query));
    mlo_buf_clear(&query);
}

/* `most` texts in this place (all where most is 0), markup among them. */
static inline void probe_place(struct probe *p, const struct call *c, const char *path, const char *headers,
                               const char *body, enum form_of_place form, unsigned most)
{
    struct mlo_buf filled = MLO_BUF_INIT, lines = MLO_BUF_INIT, place = MLO_BUF_INIT;
    const char *in = form == IN_JSON ? body : form == IN_HEADER ? headers : path;
    for (size_t i = 0; i <= (most ? most : LONG_TEXT); i++) {
        size_t which = !most || i == 0 ? i : probe_random(p) % (LONG_TEXT + 1);
        if (!put_text(&filled, in, form, which))
            continue;
        mlo_buf_reset(&lines);
        mlo_buf_printf(&lines, "Authorization: Bearer %s\r\n%s", p->api->token[MLO_ADMIN],
                       form == IN_HEADER ? mlo_buf_str(&filled) : headers);
        if (body)
            mlo_buf_printf(&lines, "Content-Type: %s\r\n", c->type);
        mlo_buf_reset(&place);
        mlo_buf_printf(&place, "%s at %.200s", text_name(which), in);
        const char *bytes = form == IN_JSON ? filled.data : body;
        probe_send(p, c->of->method, form == IN_URL ? mlo_buf_str(&filled) : path, mlo_buf_str(&lines), bytes,
                   form == IN_JSON ? filled.len
                   : body          ? strlen(body)
                                   : 0,
                   mlo_buf_str(&place));
    }
    mlo_buf_clear(&filled);
    mlo_buf_clear(&lines);
    mlo_buf_clear(&place);
}

static inline void probe_operation(struct probe *p, const json_t *contract, struct call *c, unsigned most)
{
    struct mlo_buf path = MLO_BUF_INIT, headers = MLO_BUF_INIT;
    enum form_of_place form;
    const json_t *parameters = json_object_get(c->operation, "parameters");
    json_t *trials = json_array(), *trial, *media = NULL;
    size_t i;
    json_object_foreach(json_object_get(json_object_get(c->operation, "requestBody"), "content"), c->type,
                        media) break;
    c->schema = c->type ? json_object_get(media, "schema") : NULL;
    c->example = c->type ? json_object_get(media, "example") : NULL;
    bool json = c->type && strcmp(c->type, "application/json") == 0;
    char *body = !c->type                     ? NULL
                 : json_is_string(c->example) ? strdup(json_string_value(c->example))
                                              : json_dumps(c->example, 0);
    for (int place = 0; place < (int)json_array_size(parameters); place++) {
        request_of(contract, c, place, &path, &headers, &form);
        probe_place(p, c, mlo_buf_str(&path), mlo_buf_str(&headers), body, form, most);
    }
    if (json)
        trials_of(contract, c->schema, c->example, 0, trials);
    request_of(contract, c, -1, &path, &headers, &form);
    json_array_foreach(trials, i, trial)
    {
        char *text = json_dumps(trial, JSON_ENCODE_ANY);
        probe_place(p, c, mlo_buf_str(&path), mlo_buf_str(&headers), text, IN_JSON, most);
        free(text);
    }
    free(body);
    json_decref(trials);
    mlo_buf_clear(&path);
    mlo_buf_clear(&headers);
}

#endif
