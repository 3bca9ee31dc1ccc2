/* Reads MLflow's filters: see mlflow_filter.h. */
#include "api/http/mlflow_filter.h"

#include <ctype.h>
#include <string.h>

/* Models and versions have it for MLflow's own prompts; here nothing is one. The stock client asks so in
 * every search. */
#define PROMPT_TAG "mlflow.prompt.is_prompt"

struct scan {
    enum mlo_mlflow_kind kind;
    const char *text, *at;
    struct mlo_buf word; /* the last text that was read */
    struct mlo_error *err;
};

static const struct {
    const char *name, *field; /* as the catalog calls it */
    bool of_models, number;
} KEYS[] = {
    {"name", "name", true, false},
    {"version_number", "version", false, true},
    {"run_id", "none", false, false},
};

/* By their words; the longer before those that they begin with. */
static const struct {
    const char *first, *second; /* of two words, or one */
    const char *op;
    bool text, tag, number, list;
} OPS[] = {
    {"!=", NULL, "!=", true, true, true, false},       {"<=", NULL, "<=", false, false, true, false},
    {">=", NULL, ">=", false, false, true, false},     {"=", NULL, "=", true, true, true, false},
    {"<", NULL, "<", false, false, true, false},       {">", NULL, ">", false, false, true, false},
    {"LIKE", NULL, "LIKE", true, true, false, false},  {"ILIKE", NULL, "ILIKE", true, true, false, false},
    {"NOT", "IN", "NOT IN", true, false, false, true}, {"IN", NULL, "IN", true, false, false, true},
};

static enum mlo_status fail(struct scan *s, const char *what)
{
    mlo_error_set(s->err, MLO_EINVAL, "the filter does not read: %s", what);
    mlo_error_where(s->err, "filter, column %zu", (size_t)(s->at - s->text) + 1);
    mlo_error_hint(s->err, "docs/mlflow.md says what a filter can be");
    return MLO_EINVAL;
}

static void skip_blanks(struct scan *s)
{
    while (isspace((unsigned char)*s->at))
        s->at++;
}

static bool plain(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("_./-", c));
}

/* Takes the word or sign when it comes next, without regard to case; a word ends where no letter follows. */
static bool take(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(s);
    if (strncasecmp(s->at, word, n) != 0 || (isalpha((unsigned char)word[0]) && plain(s->at[n])))
        return false;
    s->at += n;
    return true;
}

/* A text in quotes of this kind, into s->word. */
static enum mlo_status take_quoted(struct scan *s)
{
    const char quote = *s->at++;
    mlo_buf_reset(&s->word);
    for (; *s->at; s->at++) {
        if (*s->at == quote && *++s->at != quote)
            return mlo_buf_ok(&s->word) ? MLO_OK : mlo_error_nomem(s->err);
        mlo_buf_putc(&s->word, *s->at);
    }
    return fail(s, "a quote is not closed");
}

static enum mlo_status take_value(struct scan *s)
{
    skip_blanks(s);
    if (*s->at != '\'' && *s->at != '"')
        return fail(s, "a text in quotes is expected here");
    return take_quoted(s);
}

/* One part of a key, plain up to the first dot or the end (`whole`: with dots), or in quotes. */
static enum mlo_status take_key(struct scan *s, bool whole)
{
    if (*s->at == '`' || *s->at == '"') {
        enum mlo_status status = take_quoted(s);
        return status == MLO_OK && s->word.len == 0 ? fail(s, "a key has no letters") : status;
    }
    mlo_buf_reset(&s->word);
    for (; plain(*s->at) && (whole || *s->at != '.'); s->at++)
        mlo_buf_putc(&s->word, *s->at);
    if (!mlo_buf_ok(&s->word))
        return mlo_error_nomem(s->err);
    return s->word.len ? MLO_OK : fail(s, "a key is expected here");
}

static bool word_is(const struct scan *s, const char *word)
{
    return strcmp(mlo_buf_str(&s->word), word) == 0;
}

/* KEY: its field, and of a tag its key, into the condition. */
static enum mlo_status key(struct scan *s, json_t *condition, bool *tag, bool *number)
{
    enum mlo_status status;
    *tag = *number = false;
    skip_blanks(s);
    const char *const begin = s->at;
    MLO_TRY(take_key(s, false));
    if (*s->at == '.') {
        const bool attribute = word_is(s, "attribute");
        *tag = word_is(s, "tag") || word_is(s, "tags");
        if (!*tag && !attribute) {
            s->at = begin;
            return fail(s, "a key with a dot begins with tags. or attribute.");
        }
        s->at++;
        MLO_TRY(take_key(s, *tag));
    }
    if (*tag) {
        if (json_object_set_new(condition, "field", json_string("tag")) != 0 ||
            json_object_set_new(condition, "key", json_string(mlo_buf_str(&s->word))) != 0)
            return mlo_error_nomem(s->err);
        return MLO_OK;
    }
    for (size_t i = 0; i < MLO_COUNT(KEYS); i++) {
        if (!word_is(s, KEYS[i].name) || (s->kind == MLO_MLFLOW_MODELS && !KEYS[i].of_models))
            continue;
        *number = KEYS[i].number;
        return json_object_set_new(condition, "field", json_string(KEYS[i].field)) == 0
                   ? MLO_OK
                   : mlo_error_nomem(s->err);
    }
    s->at = begin;
    return fail(s, s->kind == MLO_MLFLOW_MODELS
                       ? "models are found by name and tags.KEY"
                       : "versions are found by name, version_number, run_id and tags.KEY");
out:
    return status;
}

static enum mlo_status number_value(struct scan *s, json_t *condition)
{
    char digits[24];
    size_t n = 0;
    int64_t value;
    skip_blanks(s);
    const char *const begin = s->at;
    for (; isdigit((unsigned char)*s->at) || (n == 0 && *s->at == '-'); s->at++)
        if (n < sizeof digits - 1)
            digits[n++] = *s->at;
    digits[n] = '\0';
    if (!mlo_str_to_i64(digits, &value) || plain(*s->at)) {
        s->at = begin;
        return fail(s, "a whole number is expected here");
    }
    return json_object_set_new(condition, "number", json_integer(value)) == 0 ? MLO_OK
                                                                              : mlo_error_nomem(s->err);
}

static enum mlo_status list_value(struct scan *s, json_t *condition)
{
    json_t *list = json_array();
    enum mlo_status status = MLO_OK;
    if (!list || json_object_set_new(condition, "list", list) != 0)
        return mlo_error_nomem(s->err);
    if (!take(s, "("))
        return fail(s, "a list is expected here: ('a', 'b')");
    do {
        MLO_TRY(take_value(s));
        if (json_array_size(list) >= MLO_MLFLOW_LIST_MAX)
            return fail(s, "a list has at most 1000 texts");
        if (json_array_append_new(list, json_string(mlo_buf_str(&s->word))) != 0)
            return mlo_error_nomem(s->err);
    } while (take(s, ","));
    if (!take(s, ")"))
        return fail(s, "a list is not closed");
out:
    return status;
}

/* OP VALUE. */
static enum mlo_status comparison(struct scan *s, json_t *condition, bool tag, bool number)
{
    enum mlo_status status;
    skip_blanks(s);
    const char *const begin = s->at;
    for (size_t i = 0; i < MLO_COUNT(OPS); i++) {
        if (!take(s, OPS[i].first) || (OPS[i].second && !take(s, OPS[i].second))) {
            s->at = begin;
            continue;
        }
        if (number ? !OPS[i].number : tag ? !OPS[i].tag : !OPS[i].text) {
            s->at = begin;
            break;
        }
        if (json_object_set_new(condition, "op", json_string(OPS[i].op)) != 0)
            return mlo_error_nomem(s->err);
        if (number)
            return number_value(s, condition);
        if (OPS[i].list)
            return list_value(s, condition);
        MLO_TRY(take_value(s));
        return json_object_set_new(condition, "text", json_string(mlo_buf_str(&s->word))) == 0
                   ? MLO_OK
                   : mlo_error_nomem(s->err);
    }
    return fail(s, number ? "a number is compared by = != < <= > >="
                   : tag  ? "a tag is compared by = != LIKE ILIKE"
                          : "it is compared by = != LIKE ILIKE IN, NOT IN");
out:
    return status;
}

/* A condition on MLflow's prompts: true of all here, and left out; or of nothing. */
static bool about_prompts(json_t *condition, bool *all)
{
    const char *op = mlo_json_str(condition, "op", ""), *text = mlo_json_str(condition, "text", "");
    if (strcmp(mlo_json_str(condition, "key", ""), PROMPT_TAG) != 0)
        return false;
    *all = (strcmp(op, "=") == 0 && strcmp(text, "false") == 0) ||
           (strcmp(op, "!=") == 0 && strcmp(text, "true") == 0);
    return true;
}

static enum mlo_status condition(struct scan *s, json_t *conditions)
{
    json_t *one = json_object();
    bool tag, number, all = false;
    enum mlo_status status;
    if (!one)
        return mlo_error_nomem(s->err);
    MLO_TRY(key(s, one, &tag, &number));
    MLO_TRY(comparison(s, one, tag, number));
    if (about_prompts(one, &all) && all)
        goto out;
    if (json_array_size(conditions) >= MLO_MLFLOW_CONDITIONS_MAX)
        status = fail(s, "it has more than 32 conditions");
    else if (json_array_append(conditions, one) != 0)
        status = mlo_error_nomem(s->err);
out:
    json_decref(one);
    return status;
}

enum mlo_status mlo_mlflow_filter(enum mlo_mlflow_kind kind, const char *text, json_t **out,
                                  struct mlo_error *err)
{
    struct scan s = {.kind = kind, .text = text, .at = text, .word = MLO_BUF_INIT, .err = err};
    json_t *conditions = json_array(), *whole = NULL;
    enum mlo_status status = MLO_OK;
    *out = NULL;
    if (!conditions)
        return mlo_error_nomem(err);
    if (!text)
        goto done;
    if (strlen(text) > MLO_MLFLOW_FILTER_MAX) {
        status = fail(&s, "it has more than 8192 bytes");
        goto out;
    }
    whole = json_string(text);
    if (!whole) {
        status = fail(&s, "it is not UTF-8");
        goto out;
    }
    skip_blanks(&s);
    if (!*s.at)
        goto done;
    do {
        MLO_TRY(condition(&s, conditions));
    } while (take(&s, "AND"));
    skip_blanks(&s);
    if (*s.at) {
        status = fail(&s, "conditions are joined by AND");
        goto out;
    }
done:
    *out = json_incref(conditions);
out:
    json_decref(whole);
    json_decref(conditions);
    mlo_buf_clear(&s.word);
    return status;
}

/* --- order_by ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum mlo_mlflow_by by;
    bool of_models;
} ORDERS[] = {
    {"name", MLO_MLFLOW_NAME, true},
    {"version_number", MLO_MLFLOW_VERSION, false},
    {"creation_timestamp", MLO_MLFLOW_CREATED, true},
    {"last_updated_timestamp", MLO_MLFLOW_CHANGED, true},
};

static enum mlo_status bad_order(const char *entry, struct mlo_error *err)
{
    mlo_error_set(err, MLO_EINVAL, "'%.100s' is nothing to order by here", entry);
    mlo_error_where(err, "order_by");
    mlo_error_hint(
        err, "one of name, creation_timestamp, last_updated_timestamp, of versions also version_number, "
             "then ASC or DESC; equal ones are by name ASC, then version_number DESC");
    return MLO_EINVAL;
}

static enum mlo_status read_order(enum mlo_mlflow_kind kind, const char *entry, struct mlo_mlflow_order *out,
                                  struct mlo_error *err)
{
    char name[32], direction[8] = "ASC";
    const char *at = entry + strspn(entry, " \t");
    if (mlo_str_starts(at, "attribute."))
        at += strlen("attribute.");
    size_t n = strcspn(at, " \t");
    if (n >= sizeof name)
        return bad_order(entry, err);
    snprintf(name, sizeof name, "%.*s", (int)n, at);
    at += n + strspn(at + n, " \t");
    n = strcspn(at, " \t");
    if (n >= sizeof direction || at[n + strspn(at + n, " \t")])
        return bad_order(entry, err);
    if (n)
        snprintf(direction, sizeof direction, "%.*s", (int)n, at);
    out->falling = strcasecmp(direction, "DESC") == 0;
    if (!out->falling && strcasecmp(direction, "ASC") != 0)
        return bad_order(entry, err);
    for (size_t i = 0; i < MLO_COUNT(ORDERS); i++) {
        if (strcmp(name, ORDERS[i].name) == 0 && (ORDERS[i].of_models || kind == MLO_MLFLOW_VERSIONS)) {
            out->by = ORDERS[i].by;
            return MLO_OK;
        }
    }
    return bad_order(entry, err);
}

enum mlo_status mlo_mlflow_order(enum mlo_mlflow_kind kind, const char *const *entries, size_t count,
                                 struct mlo_mlflow_order *out, struct mlo_error *err)
{
    /* what decides between those that are equal so far */
    static const struct mlo_mlflow_order ties[] = {{MLO_MLFLOW_NAME, false}, {MLO_MLFLOW_VERSION, true}};
    const size_t tie_count = kind == MLO_MLFLOW_VERSIONS ? 2 : 1;
    size_t tie = 0;
    struct mlo_mlflow_order next;
    enum mlo_status status = MLO_OK;
    *out = kind == MLO_MLFLOW_VERSIONS ? (struct mlo_mlflow_order){MLO_MLFLOW_CHANGED, true}
                                       : (struct mlo_mlflow_order){MLO_MLFLOW_NAME, false};
    for (size_t i = 0; i < count; i++) {
        MLO_TRY(read_order(kind, entries[i], i ? &next : out, err));
        if (i == 0)
            continue;
        while (tie < tie_count && ties[tie].by == out->by)
            tie++;
        if (tie == tie_count || next.by != ties[tie].by || next.falling != ties[tie].falling)
            return bad_order(entries[i], err);
        tie++;
    }
out:
    return status;
}
