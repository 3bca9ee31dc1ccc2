/* MLflow's filters and orders, of models and of versions: what is accepted has conditions of the catalog
 * alone, and means the same when it is written anew. */
#include "api/http/mlflow_filter.h"
#include "tests/fuzz/fuzz.h"

static void quote(struct mlo_buf *out, char mark, const char *text)
{
    mlo_buf_putc(out, mark);
    for (; *text; text++) {
        if (*text == mark)
            mlo_buf_putc(out, mark);
        mlo_buf_putc(out, *text);
    }
    mlo_buf_putc(out, mark);
}

static bool among(const char *word, const char *words)
{
    const char *at = strstr(words, word);
    size_t n = strlen(word);
    return n && at && (at == words || at[-1] == '|') && (at[n] == '|' || !at[n]);
}

/* A condition as a filter says it. */
static void write_condition(const json_t *condition, struct mlo_buf *out)
{
    const char *field = mlo_json_str(condition, "field", ""), *op = mlo_json_str(condition, "op", "");
    const json_t *text = json_object_get(condition, "text"), *number = json_object_get(condition, "number"),
                 *list = json_object_get(condition, "list");
    json_t *item;
    size_t i;
    FUZZ_CHECK(!!text + !!number + !!list == 1, "'%s' has not one value", field);
    if (strcmp(field, "tag") == 0) {
        mlo_buf_puts(out, "tags.");
        FUZZ_CHECK(*mlo_json_str(condition, "key", ""), "a tag without a key");
        quote(out, '`', mlo_json_str(condition, "key", ""));
    } else {
        FUZZ_CHECK(among(field, "name|version|none"), "'%s' is no field", field);
        mlo_buf_puts(out, strcmp(field, "name") == 0      ? "name"
                          : strcmp(field, "version") == 0 ? "version_number"
                                                          : "run_id");
    }
    FUZZ_CHECK(among(op, number ? "=|!=|<|<=|>|>="
                         : list ? "IN|NOT IN"
                                : "=|!=|LIKE|ILIKE"),
               "'%s' is no comparison of its value", op);
    mlo_buf_printf(out, " %s ", op);
    if (text)
        quote(out, '\'', json_string_value(text));
    if (number)
        mlo_buf_printf(out, "%lld", (long long)json_integer_value(number));
    FUZZ_CHECK(!list || json_array_size(list) > 0, "an empty list");
    json_array_foreach((json_t *)list, i, item)
    {
        mlo_buf_putc(out, i ? ',' : '(');
        quote(out, '\'', json_string_value(item));
    }
    if (list)
        mlo_buf_putc(out, ')');
}

static void run_filter(enum mlo_mlflow_kind kind, const char *text)
{
    struct mlo_error err = {0};
    struct mlo_buf anew = MLO_BUF_INIT;
    json_t *conditions, *again, *item;
    size_t i;
    if (!fuzz_accepted(mlo_mlflow_filter(kind, text, &conditions, &err), &err))
        return;
    FUZZ_CHECK(json_array_size(conditions) <= MLO_MLFLOW_CONDITIONS_MAX, "too many conditions");
    json_array_foreach(conditions, i, item)
    {
        mlo_buf_puts(&anew, i ? " AND " : "");
        write_condition(item, &anew);
    }
    /* with quotes and blanks of its own it may have grown beyond what is read */
    if (anew.len <= MLO_MLFLOW_FILTER_MAX) {
        FUZZ_CHECK(mlo_mlflow_filter(kind, mlo_buf_str(&anew), &again, &err) == MLO_OK,
                   "'%s' is not read: %s", mlo_buf_str(&anew), err.message);
        FUZZ_CHECK(json_equal(conditions, again), "'%s' means something else than '%s'", mlo_buf_str(&anew),
                   text);
        json_decref(again);
    }
    json_decref(conditions);
    mlo_buf_clear(&anew);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_mlflow_order order;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (enum mlo_mlflow_kind kind = MLO_MLFLOW_MODELS; kind <= MLO_MLFLOW_VERSIONS; kind++) {
        const char *entries[] = {text, "name ASC"};
        run_filter(kind, text);
        if (fuzz_accepted(mlo_mlflow_order(kind, entries, 2, &order, &err), &err))
            FUZZ_CHECK(order.by != MLO_MLFLOW_NAME && (kind || order.by != MLO_MLFLOW_VERSION),
                       "'%s' orders by what it must not", text);
    }
    free(text);
    return 0;
}
