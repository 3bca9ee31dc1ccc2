/* From the text of a filter to ranges of values. */
#include <ctype.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "registry/models.h"
#include "registry/search_impl.h"

#define BEHIND_ALL "\xf4\x8f\xbf\xbf" /* U+10FFFF: behind whatever may follow a prefix */

struct parser {
    struct mlo_db_conn *conn;
    int64_t project_id;
    const char *text, *at;
    struct mlo_error *err;
};

enum op { OP_EQ, OP_NE, OP_LE, OP_LT, OP_GE, OP_GT, OP_PREFIX, OP_HAS };
/* longer ones first */
static const struct {
    const char *text;
    enum op op;
} OPS[] = {{"!=", OP_NE}, {"<=", OP_LE}, {">=", OP_GE},   {"=", OP_EQ},
           {"<", OP_LT},  {">", OP_GT},  {"~", OP_PREFIX}};

struct value {
    char text[MLO_FACT_TEXT_MAX + 1];
    bool quoted;
};

typedef enum mlo_status read_fn(struct parser *p, const char *start, enum op op, const struct value *value,
                                struct mlo_search_range *out);

static enum mlo_status bad(struct parser *p, const char *at, const char *what, const char *detail)
{
    mlo_error_set(p->err, MLO_EINVAL, "%s%.100s", what, detail);
    mlo_error_where(p->err, "filter, column %d", (int)(at - p->text) + 1);
    return MLO_EINVAL;
}

static void skip(struct parser *p)
{
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')
        p->at++;
}

/* --- what a value means ------------------------------------------------------------------------- */

static enum mlo_status number_range(struct parser *p, const char *start, enum op op, double x,
                                    struct mlo_search_range *out)
{
    out->number = true;
    out->low = op == OP_GE || op == OP_EQ || op == OP_NE ? x
               : op == OP_GT                             ? nextafter(x, INFINITY)
                                                         : -DBL_MAX;
    out->high = op == OP_LE || op == OP_EQ || op == OP_NE ? x
                : op == OP_LT                             ? nextafter(x, -INFINITY)
                                                          : DBL_MAX;
    out->negated = op == OP_NE;
    if (isinf(out->low) || isinf(out->high)) { /* beyond the largest number: nothing */
        out->low = DBL_MAX;
        out->high = -DBL_MAX;
    }
    return op == OP_PREFIX ? bad(p, start, "a number does not begin with anything", "") : MLO_OK;
}

static enum mlo_status read_text(struct parser *p, const char *start, enum op op, const struct value *value,
                                 struct mlo_search_range *out)
{
    if (op != OP_EQ && op != OP_NE && op != OP_PREFIX)
        return bad(p, start, "that is text, which is compared by = != and ~ (begins with)", "");
    snprintf(out->lo, sizeof out->lo, "%s", value->text);
    snprintf(out->hi, sizeof out->hi, "%s%s", value->text, op == OP_PREFIX ? BEHIND_ALL : "");
    out->negated = op == OP_NE;
    return MLO_OK;
}

static enum mlo_status read_number(struct parser *p, const char *start, enum op op, const struct value *value,
                                   struct mlo_search_range *out)
{
    double x;
    if (value->quoted || !mlo_str_to_f64(value->text, &x))
        return bad(p, start, "that is compared with a number, not with ", value->text);
    return number_range(p, start, op, x, out);
}

static enum mlo_status read_param(struct parser *p, const char *start, enum op op, const struct value *value,
                                  struct mlo_search_range *out)
{
    double x;
    if (!value->quoted && op != OP_PREFIX && mlo_str_to_f64(value->text, &x))
        return number_range(p, start, op, x, out);
    return read_text(p, start, op, value, out);
}

static enum mlo_status read_bool(struct parser *p, const char *start, enum op op, const struct value *value,
                                 struct mlo_search_range *out)
{
    if (strcmp(value->text, "true") != 0 && strcmp(value->text, "false") != 0)
        return bad(p, start, "that is true or false, not ", value->text);
    return read_text(p, start, op, value, out);
}

static enum mlo_status read_dataset(struct parser *p, const char *start, enum op op,
                                    const struct value *value, struct mlo_search_range *out)
{
    struct value digest = {.quoted = true};
    struct mlo_dataset_info info;
    char name[104], text[MLO_DIGEST_TEXT_SIZE];
    const char *at = strchr(value->text, '@');
    int64_t number;
    if (mlo_str_starts(value->text, "sha256:"))
        return read_text(p, start, op, value, out);
    if (!at || op == OP_PREFIX) {
        snprintf(out->name, sizeof out->name, "name");
        return read_text(p, start, op, value, out);
    }
    snprintf(name, sizeof name, "%.*s", (int)MLO_MIN(at - value->text, (ptrdiff_t)sizeof name - 1),
             value->text);
    if (!mlo_name_valid(name) || !mlo_str_to_i64(at + 1, &number) || number < 1)
        return bad(p, start, "a dataset is NAME, NAME@VERSION or sha256:…, not ", value->text);
    enum mlo_status status = mlo_dataset_find(p->conn, p->project_id, name, number, &info, p->err);
    if (status != MLO_OK)
        return status;
    snprintf(digest.text, sizeof digest.text, "%s", mlo_digest_text(&info.manifest, text));
    return read_text(p, start, op, &digest, out);
}

static const struct key {
    const char *text, *kind;
    const char *name; /* NULL: it follows the text */
    read_fn *read;
} KEYS[] = {
    {"tag.", "tag", NULL, read_text},         {"param.", "param", NULL, read_param},
    {"metric.", "metric", NULL, read_number}, {"commit", "code", "commit", read_text},
    {"dirty", "code", "dirty", read_bool},    {"remote", "code", "remote", read_text},
    {"dataset", "dataset", "", read_dataset}, {"licence", "licence", "", read_text},
    {"model", "model", "", read_text},        {"version", "version", "", read_number},
    {"author", "author", "", read_text},
};

/* --- words ------------------------------------------------------------------------------------- */

/* The key that a word of `n` bytes is, and its name; NULL: none, and err. */
static const struct key *find_key(struct parser *p, const char *word, size_t n,
                                  char name[MLO_FACT_NAME_MAX + 4])
{
    char copy[MLO_FACT_NAME_MAX + 16];
    const char *names[MLO_COUNT(KEYS)];
    if (n >= sizeof copy) {
        bad(p, word, "a name has at most 100 characters", "");
        return NULL;
    }
    memcpy(copy, word, n);
    copy[n] = '\0';
    for (size_t i = 0; i < MLO_COUNT(KEYS); i++) {
        const struct key *key = &KEYS[i];
        names[i] = key->text;
        if (key->name ? strcmp(copy, key->text) != 0 : !mlo_str_starts(copy, key->text))
            continue;
        snprintf(name, MLO_FACT_NAME_MAX + 4, "%s", key->name ? key->name : copy + strlen(key->text));
        if (key->name || mlo_fact_name_valid(name))
            return key;
        bad(p, word, "a name is letters, digits, '_', '.', '-' and '/', at most 100: ", copy);
        return NULL;
    }
    if (!n) {
        bad(p, word, "a condition is missing here", "");
    } else {
        bad(p, word, "nothing is searched by ", copy);
        mlo_error_suggest(p->err, copy, names, MLO_COUNT(names));
    }
    mlo_error_hint(p->err,
                   "keys are tag.NAME, param.NAME, metric.NAME, commit, dirty, remote, dataset, licence, "
                   "model, version, author");
    return NULL;
}

static size_t word_length(const char *at)
{
    return strcspn(at, " \t\r\n,=!<>~\"");
}

static enum mlo_status read_value(struct parser *p, struct value *out)
{
    const char *start = p->at;
    size_t n = 0;
    bool more = true;
    out->quoted = *p->at == '"';
    if (out->quoted)
        p->at++;
    while (more) {
        if (out->quoted ? *p->at == '"' : !*p->at || strchr(" \t\r\n,\"", *p->at))
            break;
        if (!*p->at)
            return bad(p, start, "a quoted text does not end", "");
        if (out->quoted && *p->at == '\\') {
            p->at++;
            if (*p->at != '"' && *p->at != '\\')
                return bad(p, p->at - 1, "in quotes, \\ stands before \" or \\", "");
        }
        if (n >= MLO_FACT_TEXT_MAX)
            return bad(p, start, "a value has at most 1000 bytes", "");
        out->text[n++] = *p->at++;
    }
    out->text[n] = '\0';
    if (out->quoted)
        p->at++;
    else if (!n)
        return bad(p, start, "a value is missing here; an empty one is \"\"", "");
    return MLO_OK;
}

static enum mlo_status read_condition(struct parser *p, struct mlo_search_range *out)
{
    struct value value;
    enum op op = OP_HAS;
    memset(out, 0, sizeof *out);
    if (*p->at == '!') {
        out->negated = true;
        p->at++;
        skip(p);
    }
    const char *start = p->at;
    const struct key *key = find_key(p, start, word_length(start), out->name);
    if (!key)
        return MLO_EINVAL;
    out->kind = key->kind;
    p->at += word_length(start);
    skip(p);
    for (size_t i = 0; i < MLO_COUNT(OPS) && op == OP_HAS; i++) {
        if (!mlo_str_starts(p->at, OPS[i].text))
            continue;
        op = OPS[i].op;
        p->at += strlen(OPS[i].text);
    }
    if (op == OP_HAS) {
        snprintf(out->hi, sizeof out->hi, "%s", BEHIND_ALL);
        return MLO_OK;
    }
    if (out->negated)
        return bad(p, start, "'!' stands before a key alone; with a value write !=", "");
    skip(p);
    enum mlo_status status = read_value(p, &value);
    return status == MLO_OK ? key->read(p, start, op, &value, out) : status;
}

static enum mlo_status read_filter(struct parser *p, struct mlo_search_query *out)
{
    skip(p);
    while (*p->at) {
        if (out->count == MLO_SEARCH_CONDITIONS_MAX)
            return bad(p, p->at, "a filter has at most 16 conditions", "");
        enum mlo_status status = read_condition(p, &out->ranges[out->count]);
        if (status != MLO_OK)
            return status;
        out->count++;
        skip(p);
        if (!*p->at)
            break;
        if (*p->at == ',')
            p->at++;
        else if (strncmp(p->at, "and", 3) == 0 && isspace((unsigned char)p->at[3]))
            p->at += 3;
        else
            return bad(p, p->at, "between conditions stands 'and' or a comma, not ", p->at);
        skip(p);
        if (!*p->at)
            return bad(p, p->at, "a condition is missing here", "");
    }
    return MLO_OK;
}

static enum mlo_status read_order(struct parser *p, struct mlo_search_query *out)
{
    size_t n = strcspn(p->text, ":");
    const char *direction = p->text + n;
    out->ascending = strcmp(direction, ":asc") == 0;
    if (*direction && !out->ascending && strcmp(direction, ":desc") != 0) {
        mlo_error_set(p->err, MLO_EINVAL, "an order ends in :asc or :desc, not in %.60s", direction);
        mlo_error_where(p->err, "order");
        return MLO_EINVAL;
    }
    if (n == strlen("created") && strncmp(p->text, "created", n) == 0)
        return MLO_OK;
    const struct key *key = find_key(p, p->text, n, out->order_name);
    if (key && (key->read == read_number || key->read == read_param)) {
        out->order_kind = key->kind;
        return MLO_OK;
    }
    mlo_error_set(p->err, MLO_EINVAL, "versions cannot be ordered by %.*s", (int)MLO_MIN(n, (size_t)120),
                  p->text);
    mlo_error_where(p->err, "order");
    mlo_error_hint(p->err, "order by created, version, metric.NAME or param.NAME");
    return MLO_EINVAL;
}

enum mlo_status mlo_search_parse(struct mlo_db_conn *conn, const struct mlo_search *search,
                                 struct mlo_search_query *out, struct mlo_error *err)
{
    const char *filter = search->filter ? search->filter : "", *order = search->order;
    struct parser p = {
        .conn = conn, .project_id = search->project_id, .text = filter, .at = filter, .err = err};
    out->count = 0;
    enum mlo_status status = read_filter(&p, out);
    if (status != MLO_OK || !order || !*order)
        return status;
    p.text = p.at = order;
    return read_order(&p, out);
}
