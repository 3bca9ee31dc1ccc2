/* What may be given as facts: one row of MEMBERS each. */
#include "registry/facts.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "registry/evidence.h"
#include "registry/models.h"
#include "registry/ref.h"
#include "registry/sql_impl.h"

enum { FACTS_DATASET, FACTS_OF_VERSION };

const struct mlo_sql mlo_sql_facts[] = {
    [FACTS_DATASET] = {"facts_dataset",
                       "SELECT d.name, v.number FROM dataset_version v JOIN dataset d ON d.id = v.dataset_id "
                       "WHERE d.project_id = $1 AND v.manifest_digest = $2 AND d.deletion_id IS NULL "
                       "AND v.deletion_id IS NULL ORDER BY v.id DESC LIMIT 1",
                       2},
    [FACTS_OF_VERSION] = {"facts_of_version",
                          "SELECT coalesce(manifest::json -> 'facts', '{}'::json) AS facts FROM version "
                          "WHERE id = $1",
                          1},
};
const size_t mlo_sql_facts_count = MLO_COUNT(mlo_sql_facts);

/* What a reader works with. `path` is the member that it reads ("params"). */
struct reader {
    struct mlo_db_conn *conn;
    int64_t project_id;
    const char *path;
    struct mlo_error *err;
};

typedef enum mlo_status value_fn(struct reader *r, const char *name, const json_t *given, json_t **out);

static enum mlo_status wrong(struct reader *r, const char *what, const char *name)
{
    enum mlo_status status = mlo_error_set(r->err, MLO_EINVAL, "%s", what);
    mlo_error_where(r->err, "facts.%s%s%.100s", r->path, name ? "." : "", name ? name : "");
    return status;
}

bool mlo_fact_name_valid(const char *name)
{
    size_t n = name ? strlen(name) : 0;
    if (n == 0 || n > MLO_FACT_NAME_MAX || !(isalnum((unsigned char)*name) || *name == '_'))
        return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_.-/", *c))
            return false;
    return true;
}

/* One line of printable text. */
static bool text_valid(const json_t *text, size_t least)
{
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    if (!s || n < least || n > MLO_FACT_TEXT_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return true;
}

/* --- named values ------------------------------------------------------------------------------ */

static enum mlo_status read_param(struct reader *r, const char *name, const json_t *given, json_t **out)
{
    bool number = json_is_number(given) && isfinite(json_number_value(given));
    if (!number && !json_is_boolean(given) && !text_valid(given, 0))
        return wrong(r, "a parameter is a finite number, true or false, or one line of at most 1000 bytes",
                     name);
    *out = json_incref((json_t *)given);
    return MLO_OK;
}

static enum mlo_status read_metric(struct reader *r, const char *name, const json_t *given, json_t **out)
{
    if (!json_is_number(given) || !isfinite(json_number_value(given)))
        return wrong(r, "a metric is a finite number", name);
    *out = json_real(json_number_value(given) + 0.0); /* -0 is 0 */
    return *out ? MLO_OK : mlo_error_nomem(r->err);
}

static enum mlo_status read_tag(struct reader *r, const char *name, const json_t *given, json_t **out)
{
    if (!text_valid(given, 0))
        return wrong(r, "a tag's value is one line of at most 1000 bytes, or empty", name);
    *out = json_incref((json_t *)given);
    return MLO_OK;
}

static enum mlo_status read_named(struct reader *r, const json_t *given, size_t most, value_fn *read,
                                  json_t **out)
{
    const char *name;
    json_t *value;
    enum mlo_status status = MLO_OK;
    if (!json_is_object(given))
        return wrong(r, "it must be an object of names and values", NULL);
    if (json_object_size(given) > most) {
        mlo_error_set(r->err, MLO_EINVAL, "%zu %s are more than %zu", json_object_size(given), r->path, most);
        mlo_error_where(r->err, "facts.%s", r->path);
        return MLO_EINVAL;
    }
    *out = json_object();
    json_object_foreach((json_t *)given, name, value)
    {
        json_t *kept = NULL;
        if (!mlo_fact_name_valid(name)) {
            status = wrong(r, "a name is letters, digits, '_', '.', '-' and '/', at most 100", name);
            goto out;
        }
        MLO_TRY(read(r, name, value, &kept));
        if (json_object_set_new(*out, name, kept) != 0) {
            status = mlo_error_nomem(r->err);
            goto out;
        }
    }
out:
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

static enum mlo_status read_params(struct reader *r, const json_t *given, json_t **out)
{
    return read_named(r, given, MLO_FACTS_PARAMS_MAX, read_param, out);
}

static enum mlo_status read_metrics(struct reader *r, const json_t *given, json_t **out)
{
    return read_named(r, given, MLO_FACTS_METRICS_MAX, read_metric, out);
}

static enum mlo_status read_tags(struct reader *r, const json_t *given, json_t **out)
{
    return read_named(r, given, MLO_FACTS_TAGS_MAX, read_tag, out);
}

/* --- the others -------------------------------------------------------------------------------- */

static enum mlo_status read_licence(struct reader *r, const json_t *given, json_t **out)
{
    if (!text_valid(given, 1))
        return wrong(r, "a licence is one line of text, best an SPDX expression: Apache-2.0", NULL);
    *out = json_incref((json_t *)given);
    return MLO_OK;
}

static bool is_commit(const char *text)
{
    size_t n = text ? strlen(text) : 0;
    return (n == 40 || n == 64) && strspn(text, "0123456789abcdef") == n;
}

static enum mlo_status read_code(struct reader *r, const json_t *given, json_t **out)
{
    static const char *const known[] = {"commit", "dirty", "remote"};
    const json_t *remote = json_object_get(given, "remote"), *dirty = json_object_get(given, "dirty");
    const char *commit = json_string_value(json_object_get(given, "commit")), *key;
    struct mlo_buf address = MLO_BUF_INIT;
    json_t *value;
    if (!json_is_object(given))
        return wrong(r, "it must be an object of commit, dirty and remote", NULL);
    json_object_foreach((json_t *)given, key, value)
    {
        if (strcmp(key, known[0]) != 0 && strcmp(key, known[1]) != 0 && strcmp(key, known[2]) != 0) {
            enum mlo_status status = wrong(r, "a reference to code has commit, dirty and remote", key);
            mlo_error_suggest(r->err, key, known, MLO_COUNT(known));
            return status;
        }
    }
    if (!is_commit(commit))
        return wrong(r, "it must be a whole commit id: 40 or 64 lower-case hex digits", "commit");
    if (!json_is_boolean(dirty))
        return wrong(r, "it must say true or false: whether the code differed from the commit", "dirty");
    if (remote && !json_is_null(remote)) {
        if (!text_valid(remote, 1))
            return wrong(r, "it must be the address of a git repository, one line", "remote");
        mlo_git_remote_public(json_string_value(remote), &address);
    }
    *out = mlo_buf_ok(&address)
               ? json_pack("{s:s, s:b, s:s*}", "commit", commit, "dirty", json_is_true(dirty), "remote",
                           address.len ? mlo_buf_str(&address) : NULL)
               : NULL;
    mlo_buf_clear(&address);
    return *out ? MLO_OK : mlo_error_nomem(r->err);
}

/* By digest: the dataset of this project that has it. */
static enum mlo_status dataset_by_digest(struct reader *r, const char *text, json_t **out)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    char written[MLO_DIGEST_TEXT_SIZE];
    if (!mlo_str_starts(text, "sha256:") || !mlo_digest_parse(text, &digest))
        return wrong(r, "a digest is sha256: and 64 lower-case hex digits", text);
    mlo_param_i64(&p, r->project_id);
    mlo_param_digest(&p, &digest);
    enum mlo_status status = mlo_db_exec(r->conn, &mlo_sql_facts[FACTS_DATASET], &p, &rows, r->err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(r->err, MLO_ENOTFOUND, "no dataset of this project has the digest %s", text);
        mlo_error_hint(r->err, "push it first: mlopt data push PROJECT/NAME FILE…");
    }
    if (status == MLO_OK) {
        *out = json_pack("{s:s, s:I, s:s}", "name", mlo_rows_text(&rows, 0, 0), "version",
                         (json_int_t)mlo_rows_i64(&rows, 0, 1), "digest", mlo_digest_text(&digest, written));
        status = *out ? MLO_OK : mlo_error_nomem(r->err);
    }
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status dataset_by_name(struct reader *r, const char *text, json_t **out)
{
    char name[MLO_FACT_NAME_MAX + 4], digest[MLO_DIGEST_TEXT_SIZE];
    struct mlo_dataset_info info;
    const char *at = strchr(text, '@');
    int64_t number = 0;
    size_t n = at ? (size_t)(at - text) : strlen(text);
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), text);
    if (!mlo_name_valid(name) || (at && (!mlo_str_to_i64(at + 1, &number) || number < 1)))
        return wrong(r, "a dataset is NAME, NAME@VERSION or sha256:…, of this project", text);
    enum mlo_status status = mlo_dataset_find(r->conn, r->project_id, name, number, &info, r->err);
    if (status != MLO_OK)
        return status;
    *out = json_pack("{s:s, s:I, s:s}", "name", name, "version", (json_int_t)info.number, "digest",
                     mlo_digest_text(&info.manifest, digest));
    return *out ? MLO_OK : mlo_error_nomem(r->err);
}

static int by_digest(const void *a, const void *b)
{
    return strcmp(mlo_json_str(*(json_t *const *)a, "digest", ""),
                  mlo_json_str(*(json_t *const *)b, "digest", ""));
}

static enum mlo_status read_datasets(struct reader *r, const json_t *given, json_t **out)
{
    json_t *found[MLO_FACTS_DATASETS_MAX], *item;
    size_t count = 0, i;
    enum mlo_status status = MLO_OK;
    if (!json_is_array(given) || json_array_size(given) > MLO_FACTS_DATASETS_MAX)
        return wrong(r, "it must be an array of at most 50 datasets", NULL);
    json_array_foreach((json_t *)given, i, item)
    {
        const json_t *digest = json_is_object(item) ? json_object_get(item, "digest") : item;
        const char *text = json_string_value(digest);
        if (!text) {
            status = wrong(r, "a dataset is NAME, NAME@VERSION or sha256:…, of this project", NULL);
            goto out;
        }
        MLO_TRY(json_is_object(item) || mlo_str_starts(text, "sha256:")
                    ? dataset_by_digest(r, text, &found[count])
                    : dataset_by_name(r, text, &found[count]));
        count++;
    }
    qsort(found, count, sizeof *found, by_digest);
    *out = json_array();
    for (i = 0; i < count; i++)
        if ((i == 0 || by_digest(&found[i - 1], &found[i]) != 0) && json_array_append(*out, found[i]) != 0)
            status = mlo_error_nomem(r->err);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
out:
    for (i = 0; i < count; i++)
        json_decref(found[i]);
    if (status != MLO_OK)
        mlo_error_where(r->err, "facts.datasets[%zu]", count);
    return status;
}

/* NAME@V[/VARIANT] of this project, or what that was answered as. `what` is the member for people. */
static enum mlo_status read_model(struct reader *r, const char *what, const json_t *given, json_t **out)
{
    enum mlo_status status;
    struct mlo_ref ref = {0};
    struct mlo_version_info version;
    struct mlo_variant_info variant;
    int64_t model;
    char text[320], digest[MLO_DIGEST_TEXT_SIZE];
    /* a reference has a project; this one is known, whatever it is called */
    if (json_is_object(given))
        snprintf(text, sizeof text, "p/%.100s@%lld/%.100s", mlo_json_str(given, "name", ""),
                 (long long)mlo_json_i64(given, "version", 0),
                 mlo_json_str(given, "variant", MLO_VARIANT_SOURCE));
    else
        snprintf(text, sizeof text, "p/%.300s", json_is_string(given) ? json_string_value(given) : "");
    if (mlo_ref_parse(text, &ref, NULL) != MLO_OK || ref.stage[0] || !ref.version)
        return wrong(r, what, NULL);
    MLO_TRY(mlo_model_find(r->conn, r->project_id, ref.name, &model, r->err));
    MLO_TRY(mlo_version_find(r->conn, model, ref.version, &version, r->err));
    MLO_TRY(mlo_variant_find(r->conn, version.id, ref.variant[0] ? ref.variant : MLO_VARIANT_SOURCE, &variant,
                             r->err));
    *out = json_pack("{s:s, s:I, s:s, s:s}", "name", ref.name, "version", (json_int_t)version.number,
                     "variant", variant.name, "digest", mlo_digest_text(&variant.artifact, digest));
    if (!*out)
        status = mlo_error_nomem(r->err);
out:
    if (status != MLO_OK)
        mlo_error_where(r->err, "facts.%s", r->path);
    return status;
}

#define MODEL_OF(who) who " is MODEL@VERSION or MODEL@VERSION/VARIANT, of this project"
static enum mlo_status read_teacher(struct reader *r, const json_t *given, json_t **out)
{
    return read_model(r, MODEL_OF("a teacher"), given, out);
}

static enum mlo_status read_origin(struct reader *r, const json_t *given, json_t **out)
{
    return read_model(r, MODEL_OF("what it was derived from"), given, out);
}

/* --- all --------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum mlo_status (*read)(struct reader *r, const json_t *given, json_t **out);
} MEMBERS[] = {{"code", read_code},       {"datasets", read_datasets}, {"derived_from", read_origin},
               {"licence", read_licence}, {"metrics", read_metrics},   {"params", read_params},
               {"tags", read_tags},       {"teacher", read_teacher}};

static enum mlo_status read_member(struct reader *r, const char *name, const json_t *given, json_t *facts)
{
    const char *names[MLO_COUNT(MEMBERS)];
    json_t *value = NULL;
    for (size_t i = 0; i < MLO_COUNT(MEMBERS); i++) {
        names[i] = MEMBERS[i].name;
        if (strcmp(name, names[i]) != 0)
            continue;
        r->path = names[i];
        enum mlo_status status = json_is_null(given) ? MLO_OK : MEMBERS[i].read(r, given, &value);
        bool empty = !value || ((json_is_object(value) || json_is_array(value)) &&
                                json_object_size(value) + json_array_size(value) == 0);
        if (status == MLO_OK && !empty && json_object_set(facts, name, value) != 0)
            status = mlo_error_nomem(r->err);
        json_decref(value);
        return status;
    }
    mlo_error_set(r->err, MLO_EINVAL, "'%.60s' is no member of facts", name);
    mlo_error_where(r->err, "field 'facts'");
    if (!mlo_error_suggest(r->err, name, names, MLO_COUNT(names)))
        mlo_error_hint(r->err, "facts are code, datasets, derived_from, licence, metrics, params, tags and "
                               "teacher");
    return MLO_EINVAL;
}

enum mlo_status mlo_facts_read(struct mlo_db_conn *conn, int64_t project_id, const json_t *given,
                               json_t **out, struct mlo_error *err)
{
    struct reader r = {.conn = conn, .project_id = project_id, .err = err};
    const char *name;
    json_t *value, *facts = NULL;
    enum mlo_status status = MLO_OK;
    *out = NULL;
    if (!given || json_is_null(given))
        return MLO_OK;
    if (!json_is_object(given)) {
        mlo_error_set(err, MLO_EINVAL, "'facts' must be an object");
        mlo_error_where(err, "field 'facts'");
        return MLO_EINVAL;
    }
    facts = json_object();
    json_object_foreach((json_t *)given, name, value) MLO_TRY(read_member(&r, name, value, facts));
    if (json_object_size(facts))
        *out = json_incref(facts);
out:
    json_decref(facts);
    return status;
}

enum mlo_status mlo_version_facts(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *row = NULL;
    *out = NULL;
    mlo_param_i64(&p, version_id);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_facts[FACTS_OF_VERSION], &p, &row, err);
    if (status == MLO_OK)
        *out = json_incref(json_object_get(row, "facts"));
    json_decref(row);
    return status;
}
