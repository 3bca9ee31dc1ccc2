/* `reproduce --local`: the derivations that workers signed, done again by this program on this machine, from
 * the bytes that they name. Nobody's word is needed for the outcome: equal digests show that the derivation
 * gives these bytes, whoever said so. Nothing is told to the server: what it records is signed by its
 * workers. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/statement.h"
#include "pipeline/steps/steps.h"

enum { CHAIN_MAX = 64 };

struct again {
    struct mlo_cli *cli;
    struct mlo_client *client;
    struct mlo_client_ref ref;
    const char *version, *dir; /* dir: scratch */
    char *source, *model;      /* paths: the upload; what the next step reads */
    json_t *rows;              /* what came out */
    unsigned threads;
};

/* One derivation of the chain. */
struct link {
    struct mlo_statement statement;
    int64_t run_id;
};

static const json_t *external(const struct link *link)
{
    return json_object_get(mlo_statement_definition(link->statement.value), "externalParameters");
}

/* A statement of this artifact whose signature holds. */
static bool find(const json_t *items, const char *artifact, struct link *out)
{
    json_t *item;
    size_t i;
    json_array_foreach((json_t *)items, i, item)
    {
        mlo_statement_open(item, &out->statement);
        const json_t *subject = mlo_statement_subject(out->statement.value);
        if (out->statement.value && strcmp(mlo_statement_sha256(subject), artifact) == 0) {
            out->run_id = mlo_json_i64(item, "run_id", 0);
            return true;
        }
        json_decref(out->statement.value);
        out->statement.value = NULL;
    }
    return false;
}

/* From the variant down to the upload; link[0] made the variant. */
static enum mlo_status read_chain(const json_t *answer, const char *source, struct link *links, size_t *count,
                                  struct mlo_error *err)
{
    const json_t *items = json_object_get(answer, "items");
    const char *top = mlo_json_str(answer, "artifact", "");
    char artifact[72];
    snprintf(artifact, sizeof artifact, "%.64s", mlo_str_starts(top, "sha256:") ? top + 7 : "");
    while (strcmp(artifact, source) != 0) {
        if (*count == CHAIN_MAX)
            return mlo_error_set(err, MLO_EDIGEST, "the statements do not lead to the upload");
        if (!find(items, artifact, &links[*count])) {
            mlo_error_set(err, MLO_ENOTFOUND, "nobody signed how sha256:%s was made", artifact);
            mlo_error_hint(err, "without --local a worker makes it again from what the server recorded");
            return MLO_ENOTFOUND;
        }
        snprintf(artifact, sizeof artifact, "%.64s", mlo_statement_parent(links[(*count)++].statement.value));
    }
    return MLO_OK;
}

/* --- what goes in ----------------------------------------------------------------------------------- */

static enum mlo_status fetch_blob(struct again *a, const char *dir, const char *name, const char *digest,
                                  char **written, struct mlo_error *err)
{
    struct mlo_response response;
    struct mlo_buf path = MLO_BUF_INIT;
    mlo_client_path(&path, "/v1/projects/%s/blobs/%s", a->ref.project, digest);
    enum mlo_status status = mlo_client_download(a->client, mlo_buf_str(&path), dir, name, "data", digest,
                                                 written, &response, err);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    return status;
}

/* The model file and its external data. */
static enum mlo_status fetch_source(struct again *a, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *row = NULL, *file;
    size_t i;
    char *dir = mlo_fs_join(a->dir, "source", NULL);
    MLO_TRY(dir ? mlo_fs_mkdirs(dir, err) : mlo_error_nomem(err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s", a->ref.project, a->ref.name, a->version);
    MLO_TRY(mlo_client_get(a->client, mlo_buf_str(&path), &row, err));
    json_array_foreach(json_object_get(row, "files"), i, file)
    {
        const char *role = mlo_json_str(file, "role", "");
        bool model = strcmp(role, "model") == 0;
        char *written = NULL;
        if (!model && strcmp(role, "data") != 0 && strcmp(role, "external-data") != 0)
            continue;
        MLO_TRY(fetch_blob(a, dir, mlo_json_str(file, "name", NULL), mlo_json_str(file, "digest", ""),
                           &written, err));
        if (model && !a->source)
            a->source = written;
        else
            free(written);
    }
    if (!a->source)
        status = mlo_error_set(err, MLO_ENOTFOUND, "version %s has no model file", a->version);
out:
    json_decref(row);
    mlo_buf_clear(&path);
    free(dir);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(mlo_json_str(*(json_t *const *)a, "name", ""),
                  mlo_json_str(*(json_t *const *)b, "name", ""));
}

/* The files as a manifest lists them; NULL: out of memory, or something is missing. */
static json_t *manifest_files(const json_t *files)
{
    size_t count = json_array_size(files), i;
    const json_t **sorted = calloc(count + 1, sizeof *sorted);
    json_t *out = sorted ? json_array() : NULL;
    for (i = 0; i < count && sorted; i++)
        sorted[i] = json_array_get(files, i);
    if (sorted)
        qsort(sorted, count, sizeof *sorted, by_name);
    for (i = 0; i < count && out; i++) {
        const json_t *file = sorted[i];
        json_t *row =
            json_pack("{s:O*, s:O*, s:O*, s:O*, s:O*}", "role", json_object_get(file, "role"), "name",
                      json_object_get(file, "name"), "digest", json_object_get(file, "digest"), "size",
                      json_object_get(file, "size"), "media_type", json_object_get(file, "media_type"));
        if (json_array_append_new(out, row) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    free(sorted);
    return out;
}

/* *same: whether what was fetched as a dataset's version has this digest, whatever the server says it is:
 * that of the manifest (registry/manifest.c), by whose digests its files were fetched. */
static enum mlo_status is_dataset(const json_t *row, const char *wanted, bool *same, struct mlo_error *err)
{
    json_t *facts = json_object_get(row, "facts"), *metadata = json_object_get(row, "metadata");
    char text[MLO_DIGEST_TEXT_SIZE];
    struct mlo_digest digest;
    json_t *manifest = json_pack("{s:o*, s:O*}", "files", manifest_files(json_object_get(row, "files")),
                                 "metadata", metadata);
    enum mlo_status status = manifest ? MLO_OK : mlo_error_nomem(err);
    *same = false;
    if (json_object_size(facts) && status == MLO_OK && json_object_set(manifest, "facts", facts) != 0)
        status = mlo_error_nomem(err);
    MLO_TRY(status);
    MLO_TRY(mlo_json_digest(manifest, &digest, err));
    *same = strcmp(mlo_digest_text(&digest, text), wanted) == 0;
    if (!*same && json_object_size(metadata) == 0) { /* none is answered as an empty one */
        json_object_del(manifest, "metadata");
        MLO_TRY(mlo_json_digest(manifest, &digest, err));
        *same = strcmp(mlo_digest_text(&digest, text), wanted) == 0;
    }
out:
    json_decref(manifest);
    return status;
}

/* The dataset of a role, in the version that the derivation names by its digest; *out is its folder. */
static enum mlo_status fetch_data(struct again *a, const struct link *link, const char *role, const char *dir,
                                  char **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *run = NULL, *row = NULL, *files = json_array();
    const char *wanted =
        mlo_json_str(json_object_get(json_object_get(external(link), "derivation"), "datasets"), role, "");
    char version[24];
    bool same;
    mlo_client_path(&path, "/v1/projects/%s/runs/%d", a->ref.project, (long long)link->run_id);
    MLO_TRY(mlo_client_get(a->client, mlo_buf_str(&path), &run, err));
    const json_t *data = json_object_get(json_object_get(run, "datasets"), role);
    const char *full = mlo_json_str(data, "name", ""), *name = strchr(full, '/');
    if (!name || strcmp(mlo_json_str(data, "digest", ""), wanted) != 0) {
        status = mlo_error_set(err, MLO_EDIGEST, "run %lld does not name the %s data %.80s",
                               (long long)link->run_id, role, wanted);
        goto out;
    }
    snprintf(version, sizeof version, "%lld", (long long)mlo_json_i64(data, "version", 0));
    *out = mlo_fs_join(dir, role, NULL);
    MLO_TRY(*out ? mlo_fs_mkdirs(*out, err) : mlo_error_nomem(err));
    MLO_TRY(mlo_client_data(a->client, a->ref.project, name + 1, version, *out, &row, files, err));
    MLO_TRY(is_dataset(row, wanted, &same, err));
    if (!same)
        status =
            mlo_error_set(err, MLO_EDIGEST, "%s@%s is not the %s data %.80s", full, version, role, wanted);
out:
    json_decref(run);
    json_decref(row);
    json_decref(files);
    mlo_buf_clear(&path);
    return status;
}

/* --- a derivation ----------------------------------------------------------------------------------- */

/* *out: the text's digest, or NULL where the derivation names none. */
static const struct mlo_digest *named(const json_t *object, const char *key, struct mlo_digest *out)
{
    const char *text = mlo_json_str(object, key, NULL);
    return text && mlo_digest_parse(text, out) ? out : NULL;
}

/* Whether this program, with its steps and passes as they are now, would make that derivation. */
static enum mlo_status check(const json_t *derivation, const struct mlo_step **out, struct mlo_error *err)
{
    const char *name = mlo_json_str(derivation, "step", "");
    const json_t *inputs = json_object_get(derivation, "inputs"),
                 *data = json_object_get(derivation, "datasets");
    struct mlo_digest model, calibrate, select, postprocess;
    json_t *ours = NULL;
    *out = mlo_step_find(name);
    if (!*out)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "this program has no step '%.60s'", name);
    if (!named(inputs, "model", &model) || !json_is_object(json_object_get(derivation, "options")))
        return mlo_error_set(err, MLO_EFORMAT, "the derivation of the step '%.60s' names no model", name);
    enum mlo_status status = mlo_step_derivation(
        *out, json_object_get(derivation, "options"), &model, named(data, "calibrate", &calibrate),
        named(data, "select", &select), named(inputs, "postprocess", &postprocess),
        json_object_get(derivation, "decisions"), &ours, err);
    if (status == MLO_OK)
        status = mlo_step_derivation_same(name, derivation, ours, err);
    json_decref(ours);
    return status;
}

/* Whether the file at `path` is what the statement says that the step was run on. */
static enum mlo_status check_input(const struct link *link, const char *path, struct mlo_error *err)
{
    const char *model =
        mlo_json_str(json_object_get(json_object_get(external(link), "derivation"), "inputs"), "model", "");
    char text[MLO_DIGEST_TEXT_SIZE], parent[80];
    struct mlo_digest digest;
    enum mlo_status status = mlo_digest_of_file(path, &digest, NULL, err);
    if (status != MLO_OK)
        return status;
    mlo_digest_text(&digest, text);
    snprintf(parent, sizeof parent, "sha256:%.64s", mlo_statement_parent(link->statement.value));
    if (strcmp(text, model) == 0 && strcmp(text, parent) == 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EDIGEST, "the model to start from is %s, and the statement names %.80s", text,
                  strcmp(text, model) ? model : parent);
    mlo_error_hint(err, "the server, or who signed, does not tell the truth: nothing was run on it");
    return MLO_EDIGEST;
}

/* Runs it on `a->model`, which becomes what came out. */
static enum mlo_status run_step(struct again *a, const struct link *link, const struct mlo_step *step,
                                const char *dir, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *derivation = json_object_get(external(link), "derivation"),
                 *options = json_object_get(derivation, "options");
    const char *decision = json_string_value(json_array_get(json_object_get(derivation, "decisions"), 0)),
               *post = mlo_json_str(json_object_get(derivation, "inputs"), "postprocess", NULL);
    char *calibrate = NULL, *select = NULL, *chosen = NULL, *postprocess = NULL;
    struct mlo_step_result result = {0};
    struct mlo_cli_progress progress;
    if (mlo_step_reads_calibrate(step) &&
        json_is_string(json_object_get(json_object_get(derivation, "datasets"), "calibrate")))
        MLO_TRY(fetch_data(a, link, "calibrate", dir, &calibrate, err));
    if (decision) { /* what was chosen is followed, not chosen again */
        MLO_TRY(fetch_blob(a, dir, "decision.json", decision, &chosen, err));
    } else if (mlo_step_reads_select(step, options)) {
        MLO_TRY(fetch_data(a, link, "select", dir, &select, err));
        if (post)
            MLO_TRY(fetch_blob(a, dir, "postprocess.onnx", post, &postprocess, err));
    }
    const struct mlo_dataset_options reading = {.postprocess = postprocess};
    mlo_cli_progress_start(&progress, a->cli, step->name);
    const struct mlo_step_context ctx = {
        .options = options,
        .model_path = a->model ? a->model : a->source,
        .source_path = a->source,
        .calibrate_path = calibrate,
        .select_path = select,
        .decision_path = chosen,
        .reading = postprocess ? &reading : NULL,
        .out_dir = dir,
        .threads = a->threads,
        .progress = mlo_cli_progress,
        .progress_arg = &progress,
    };
    status = step->run(&ctx, &result, err);
    mlo_cli_progress_end(&progress);
    if (status == MLO_OK && !result.artifact_path)
        status = mlo_error_set(err, MLO_EINTERNAL, "it made no model");
    if (status != MLO_OK) {
        mlo_error_prefix(err, "step %s", step->name);
        goto out;
    }
    free(a->model);
    a->model = result.artifact_path;
    result.artifact_path = NULL;
out:
    mlo_step_result_clear(&result);
    free(calibrate);
    free(select);
    free(chosen);
    free(postprocess);
    return status;
}

/* *same: whether the bytes are those that the statement names. */
static enum mlo_status repeat(struct again *a, const struct link *link, size_t number, bool *same,
                              struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_step *step;
    const json_t *derivation = json_object_get(external(link), "derivation");
    struct mlo_digest made, key;
    char folder[32], artifact[MLO_DIGEST_TEXT_SIZE], made_text[MLO_DIGEST_TEXT_SIZE], machine[80],
        key_text[MLO_DIGEST_TEXT_SIZE], signer[MLO_PUBLIC_KEY_TEXT_SIZE];
    snprintf(folder, sizeof folder, "step-%zu", number);
    char *dir = mlo_fs_join(a->dir, folder, NULL);
    MLO_TRY(dir ? mlo_fs_mkdirs(dir, err) : mlo_error_nomem(err));
    MLO_TRY(check(derivation, &step, err));
    MLO_TRY(check_input(link, a->model ? a->model : a->source, err));
    MLO_TRY(run_step(a, link, step, dir, err));
    MLO_TRY(mlo_digest_of_file(a->model, &made, NULL, err));
    MLO_TRY(mlo_json_digest(derivation, &key, err));
    snprintf(artifact, sizeof artifact, "sha256:%.64s",
             mlo_statement_sha256(mlo_statement_subject(link->statement.value)));
    *same = strcmp(artifact, mlo_digest_text(&made, made_text)) == 0;
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:s, s:s, s:s, s:I}", "step", step->name, "derivation",
        mlo_digest_text(&key, key_text), "artifact", artifact, "made", made_text, "matched", *same,
        "machine_class", mlo_machine_class(machine, sizeof machine), "program", "mlopt " MLOPT_VERSION,
        "signer", mlo_public_key_text(&link->statement.signer, signer), "run_id", (json_int_t)link->run_id);
    if (!row || json_array_append_new(a->rows, row) != 0)
        status = mlo_error_nomem(err);
    else if (!*same) {
        (void)mlo_error_set(err, MLO_EJOB, "derivation %s made %s, and %s here: it is not reproducible",
                            key_text, artifact, made_text);
        mlo_error_where(err, "step '%s'", step->name);
        mlo_error_hint(err, "a pass changed its output without a new revision, its output depends on the "
                            "machine, or the recorded bytes were not made by it");
    }
out:
    free(dir);
    return status;
}

static enum mlo_status print(const json_t *rows, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *row;
    size_t i;
    mlo_table_init(&table, "|step|derivation|made|made here|machine|program|signed by");
    json_array_foreach((json_t *)rows, i, row)
    {
        char derivation[16], artifact[16], made[16];
        mlo_table_row(&table, mlo_json_bool(row, "matched", false) ? "same" : "DIFFERS",
                      mlo_json_str(row, "step", ""), mlo_client_digest(row, "derivation", derivation),
                      mlo_client_digest(row, "artifact", artifact), mlo_client_digest(row, "made", made),
                      mlo_json_str(row, "machine_class", ""), mlo_json_str(row, "program", ""),
                      mlo_json_str(row, "signer", ""));
    }
    return mlo_table_print_take(&table, err);
}

enum mlo_status mlo_client_reproduce_here(struct mlo_cli *cli, struct mlo_error *err)
{
    struct again a = {.cli = cli, .rows = json_array()};
    struct link *links = calloc(CHAIN_MAX, sizeof *links);
    struct mlo_error difference = {0};
    json_t *answer = NULL;
    char source[72];
    size_t count = 0;
    int64_t threads;
    bool same = true;
    enum mlo_status status = links && a.rows ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    MLO_TRY(mlo_cli_int(cli, "threads", 1, 1, 1024, &threads, err));
    a.threads = (unsigned)threads;
    MLO_TRY(mlo_client_open(cli, &a.client, err));
    MLO_TRY(mlo_statements_fetch(a.client, cli->args[0], &a.ref, &answer, source, err));
    MLO_TRY(mlo_client_ref_version(&a.ref, &a.version, err));
    MLO_TRY(read_chain(answer, source, links, &count, err));
    if (count == 0) {
        status =
            mlo_error_set(err, MLO_EINVAL, "'%s' is the upload itself: nothing was derived", a.ref.variant);
        goto out;
    }
    MLO_TRY(mlo_cli_scratch(NULL, &a.dir, err));
    MLO_TRY(fetch_source(&a, err));
    cli->request_id[0] = '\0'; /* what fails from here on is not the server's */
    mlo_steps_return_memory();
    for (size_t i = count; i-- > 0 && same;)
        MLO_TRY(repeat(&a, &links[i], count - i, &same, &difference));
    MLO_TRY(cli->json ? mlo_cli_print_json(a.rows, err) : print(a.rows, err));
    if (!same)
        status = MLO_EJOB;
out:
    if (difference.status != MLO_OK && err)
        *err = difference;
    for (size_t i = 0; i < count; i++)
        json_decref(links[i].statement.value);
    mlo_cli_scratch_remove(a.dir);
    free(links);
    free(a.source);
    free(a.model);
    json_decref(a.rows);
    json_decref(answer);
    mlo_client_close(a.client);
    return status;
}
