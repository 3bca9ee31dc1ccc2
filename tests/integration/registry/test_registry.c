/* Projects, models, versions, variants, datasets, derivations, evidence, lineage, tokens, idempotency; reads
 * together. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "registry/together.h"
#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

static struct mlo_digest digest_of(const char *text)
{
    struct mlo_digest d;
    mlo_digest_of(text, strlen(text), &d);
    return d;
}

static int64_t project(struct pg_fixture *f, const char *name)
{
    int64_t id;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, name, &id, &f->err), &f->err);
    return id;
}

static struct mlo_manifest_blob blob(struct pg_fixture *f, int64_t project_id, const char *role,
                                     const char *name, const char *content)
{
    struct mlo_manifest_blob b = {.role = role, .name = name, .digest = digest_of(content)};
    assert_mlo_ok(mlo_blob_record(f->conn, &root, project_id, &b.digest, strlen(content), &f->err), &f->err);
    return b;
}

static struct mlo_version_info version(struct pg_fixture *f, int64_t project_id, const char *model,
                                       const char *content)
{
    int64_t id;
    struct mlo_version_info info;
    struct mlo_manifest_blob b = blob(f, project_id, "model", "m.onnx", content);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, project_id, model, &id, &f->err), &f->err);
    assert_mlo_ok(mlo_version_create(f->conn, &root, id, "text", &b, 1, &info, &f->err), &f->err);
    return info;
}

static void test_sql__every_statement_prepares(void **state)
{
    struct pg_fixture *f = *state;
    size_t count, statements = 0;
    const struct mlo_sql_table *tables = mlo_registry_sql(&count);
    for (size_t i = 0; i < count; i++) {
        assert_mlo_ok(mlo_db_prepare_all(f->conn, tables[i].statements, tables[i].count, &f->err), &f->err);
        statements += tables[i].count;
    }
    assert_true(statements > 50);
}

static void test_project__names_and_duplicates(void **state)
{
    struct pg_fixture *f = *state;
    int64_t id, again;
    assert_mlo_ok(mlo_project_create(f->conn, &root, "fashion", "d", &id, &f->err), &f->err);
    assert_mlo_status(mlo_project_create(f->conn, &root, "fashion", "d", NULL, &f->err), MLO_EEXISTS,
                      &f->err);
    assert_mlo_status(mlo_project_create(f->conn, &root, "a/b", "d", NULL, &f->err), MLO_EINVAL, &f->err);
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "fashion", &again, &f->err), &f->err);
    assert_true(id == again);
    struct mlo_actor viewer = {.name = "v", .role = MLO_VIEWER};
    assert_mlo_status(mlo_project_create(f->conn, &viewer, "x", "", NULL, &f->err), MLO_EFORBIDDEN, &f->err);
    struct mlo_actor elsewhere = {.name = "e", .role = MLO_ADMIN, .project_id = id + 100};
    assert_mlo_status(mlo_project_find(f->conn, &elsewhere, "fashion", MLO_VIEWER, &id, &f->err),
                      MLO_ENOTFOUND, &f->err);
    json_t *list;
    struct mlo_page page = {.limit = 1};
    project(f, "second");
    assert_mlo_ok(mlo_project_list(f->conn, &root, &page, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 1);
    page.cursor = mlo_json_str(list, "next", "");
    json_t *rest;
    assert_mlo_ok(mlo_project_list(f->conn, &root, &page, &rest, &f->err), &f->err);
    assert_string_equal(mlo_json_str(json_array_get(json_object_get(rest, "items"), 0), "name", ""),
                        "second");
    assert_true(json_is_null(json_object_get(rest, "next")));
    json_decref(list);
    json_decref(rest);
}

static void test_blobs__a_digest_grants_nothing(void **state)
{
    struct pg_fixture *f = *state;
    int64_t mine = project(f, "mine"), theirs = project(f, "theirs"), model;
    struct mlo_manifest_blob b = blob(f, theirs, "model", "m.onnx", "secret");
    struct mlo_version_info info;
    uint64_t size;
    assert_mlo_ok(mlo_blob_linked(f->conn, theirs, &b.digest, &size, &f->err), &f->err);
    assert_int_equal(size, 6);
    assert_mlo_status(mlo_blob_linked(f->conn, mine, &b.digest, NULL, &f->err), MLO_ENOTFOUND, &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, mine, "m", &model, &f->err), &f->err);
    assert_mlo_status(mlo_version_create(f->conn, &root, model, "", &b, 1, &info, &f->err), MLO_ENOTFOUND,
                      &f->err);
    assert_non_null(strstr(f->err.where, "m.onnx"));
    json_t *json;
    assert_mlo_status(mlo_lineage_get(f->conn, mine, &b.digest, &json, &f->err), MLO_ENOTFOUND, &f->err);
}

/* What is read together with others is what is read alone. `number` NULL: the latest. */
static void read_together(struct pg_fixture *f, const char *number, const struct mlo_version_info *expected)
{
    struct mlo_gather *gather;
    struct mlo_gather_ask asks[2] = {mlo_version_ask("fashion", "cnn", number),
                                     mlo_version_ask("fashion", "none", number)};
    const struct mlo_actor elsewhere = {.name = "x", .project_id = 999999};
    struct mlo_version_info info;
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *alone, *together;
    assert_mlo_ok(mlo_gather_new(f->server, &gather, &f->err), &f->err);
    assert_mlo_ok(mlo_gather_read(gather, asks, 2, &f->err), &f->err);
    assert_mlo_ok(mlo_version_answer(&asks[0], &root, MLO_VIEWER, &info, &text, &f->err), &f->err);
    assert_mlo_ok(mlo_json_parse(mlo_buf_str(&text), text.len, "text", &together, &f->err), &f->err);
    assert_mlo_ok(mlo_version_get(f->conn, info.id, &alone, &f->err), &f->err);
    assert_int_equal(info.id, expected->id);
    assert_true(mlo_digest_eq(&info.artifact, &expected->artifact) && info.number == expected->number);
    assert_true(json_equal(alone, together));
    json_decref(alone);
    json_decref(together);
    assert_mlo_status(mlo_version_answer(&asks[0], &elsewhere, MLO_VIEWER, &info, &text, &f->err),
                      MLO_ENOTFOUND, &f->err);
    assert_mlo_status(mlo_version_answer(&asks[1], &root, MLO_VIEWER, &info, &text, &f->err), MLO_ENOTFOUND,
                      &f->err);
    mlo_buf_clear(&text);
    mlo_gather_clear(asks, 2);
    mlo_gather_free(gather);
}

static void test_version__manifest_and_source(void **state)
{
    struct pg_fixture *f = *state;
    int64_t p = project(f, "fashion"), model;
    json_t *json;
    struct mlo_version_info one = version(f, p, "cnn", "first"), again = version(f, p, "cnn", "first"),
                            two = version(f, p, "cnn", "second");
    assert_true(one.created && one.number == 1);
    assert_true(!again.created && again.id == one.id);
    assert_true(two.created && two.number == 2);
    read_together(f, "1", &one);
    read_together(f, NULL, &two);
    struct mlo_variant_info source;
    assert_mlo_ok(mlo_variant_find(f->conn, two.id, "source", &source, &f->err), &f->err);
    struct mlo_digest expected = digest_of("second");
    assert_true(mlo_digest_eq(&source.artifact, &expected));
    assert_mlo_ok(mlo_version_get(f->conn, two.id, &json, &f->err), &f->err);
    const json_t *file = json_array_get(json_object_get(json, "files"), 0);
    assert_string_equal(mlo_json_str(file, "name", ""), "m.onnx");
    assert_int_equal(mlo_json_i64(file, "size", 0), 6);
    assert_string_equal(mlo_json_str(json, "model", ""), "cnn");
    json_decref(json);
    assert_mlo_ok(mlo_version_list(f->conn, two.model_id, NULL, &json, &f->err), &f->err);
    assert_int_equal(mlo_json_i64(json_array_get(json_object_get(json, "items"), 0), "version", 0), 2);
    json_decref(json);
    assert_mlo_ok(mlo_model_list(f->conn, &root, p, "CN", NULL, &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(json, "items")), 1);
    json_decref(json);
    assert_mlo_ok(mlo_model_list(f->conn, &root, p, "resnet", NULL, &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(json, "items")), 0);
    json_decref(json);
    assert_mlo_ok(mlo_model_get(f->conn, two.model_id, &json, &f->err), &f->err);
    assert_true(json_is_null(json_object_get(json_object_get(json, "stages"), "production")));
    json_decref(json);

    struct mlo_manifest_blob bad[] = {blob(f, p, "model", "a", "x"), blob(f, p, "model", "b", "y")};
    assert_mlo_ok(mlo_model_find(f->conn, p, "cnn", &model, &f->err), &f->err);
    assert_mlo_status(mlo_version_create(f->conn, &root, model, "", bad, 2, &one, &f->err), MLO_EINVAL,
                      &f->err);
    bad[0].name = "../a";
    assert_mlo_status(mlo_version_create(f->conn, &root, model, "", bad, 1, &one, &f->err), MLO_EINVAL,
                      &f->err);
    assert_mlo_status(mlo_version_find(f->conn, model, 99, &one, &f->err), MLO_ENOTFOUND, &f->err);
}

struct pusher {
    struct pg_fixture *f;
    int64_t project_id, model_id;
    int number;
    int64_t got[5];
    const char *problem;
};

static void *push_many(void *arg)
{
    struct pusher *w = arg;
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    if (mlo_db_acquire(w->f->server, &conn, &err) != MLO_OK) {
        w->problem = "no connection";
        return NULL;
    }
    for (size_t i = 0; i < MLO_COUNT(w->got) && !w->problem; i++) {
        char content[32];
        snprintf(content, sizeof content, "%d %zu", w->number, i);
        struct mlo_manifest_blob b = {.role = "model", .name = "m", .digest = digest_of(content)};
        struct mlo_version_info info;
        if (mlo_blob_record(conn, &root, w->project_id, &b.digest, 1, &err) != MLO_OK ||
            mlo_version_create(conn, &root, w->model_id, "", &b, 1, &info, &err) != MLO_OK)
            w->problem = "a version was refused";
        w->got[i] = info.number;
    }
    mlo_db_release(conn);
    return NULL;
}

static void test_version__numbers_are_unique_under_concurrency(void **state)
{
    struct pg_fixture *f = *state;
    enum { PUSHERS = 6 };
    int64_t p = project(f, "fashion"), model;
    pthread_t threads[PUSHERS];
    struct pusher w[PUSHERS];
    bool seen[PUSHERS * 5 + 1] = {false};
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, p, "cnn", &model, &f->err), &f->err);
    for (int i = 0; i < PUSHERS; i++) {
        w[i] = (struct pusher){.f = f, .project_id = p, .model_id = model, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, push_many, &w[i]), 0);
    }
    for (int i = 0; i < PUSHERS; i++) {
        pthread_join(threads[i], NULL);
        assert_null(w[i].problem);
        for (size_t j = 0; j < MLO_COUNT(w[i].got); j++) {
            assert_in_range(w[i].got[j], 1, PUSHERS * 5);
            assert_false(seen[w[i].got[j]]);
            seen[w[i].got[j]] = true;
        }
    }
}

static void test_variant__derived_measured_and_traced(void **state)
{
    struct pg_fixture *f = *state;
    int64_t p = project(f, "fashion");
    struct mlo_version_info v = version(f, p, "cnn", "float");
    struct mlo_manifest_blob calibration = blob(f, p, "data", "calib.npz", "calibration"),
                             made = blob(f, p, "model", "q", "int8"),
                             other = blob(f, p, "model", "q", "int8b");
    struct mlo_dataset_info data;
    json_t *metadata = json_pack("{s:s}", "normalize", "scale=1/255"), *json;
    assert_mlo_ok(mlo_dataset_version_create(f->conn, &root, p, "calibration", "", metadata, &calibration, 1,
                                             &data, &f->err),
                  &f->err);
    assert_int_equal(data.number, 1);
    assert_mlo_ok(mlo_dataset_version_create(f->conn, &root, p, "calibration", "", metadata, &calibration, 1,
                                             &data, &f->err),
                  &f->err);
    assert_false(data.created);
    json_object_set_new(metadata, "normalize", json_string("none"));
    assert_mlo_ok(mlo_dataset_version_create(f->conn, &root, p, "calibration", "", metadata, &calibration, 1,
                                             &data, &f->err),
                  &f->err);
    assert_true(data.created && data.number == 2);
    json_decref(metadata);
    assert_mlo_ok(mlo_dataset_get(f->conn, data.version_id, &json, &f->err), &f->err);
    assert_string_equal(mlo_json_str(json_object_get(json, "metadata"), "normalize", ""), "none");
    json_decref(json);
    assert_mlo_ok(mlo_dataset_list(f->conn, &root, p, NULL, &json, &f->err), &f->err);
    assert_int_equal(mlo_json_i64(json_array_get(json_object_get(json, "items"), 0), "version", 0), 2);
    json_decref(json);

    /* what a worker writes when a job is done, in one transaction and as its own role */
    struct mlo_db_conn *worker;
    struct mlo_actor actor = {.name = "worker w1", .role = MLO_SUBMITTER, .via = "worker"};
    struct mlo_digest key, found;
    bool changed;
    json_t *derivation = json_pack("{s:s, s:i}", "step", "quantize", "revision", 1);
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    assert_mlo_ok(mlo_db_begin(worker, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(worker, &actor, p, &made.digest, 4, &f->err), &f->err);
    assert_mlo_ok(mlo_derivation_record(worker, derivation, "quantize", &made.digest, 4, NULL, &key, &f->err),
                  &f->err);
    assert_mlo_ok(
        mlo_lineage_add(worker, p, &made.digest, &v.artifact, MLO_LINEAGE_DERIVED_FROM, &key, 7, &f->err),
        &f->err);
    assert_mlo_ok(mlo_lineage_add(worker, p, &made.digest, &data.manifest, MLO_LINEAGE_CALIBRATED_WITH, &key,
                                  7, &f->err),
                  &f->err);
    assert_mlo_ok(
        mlo_variant_name(worker, &actor, v.id, "int8-cpu", &made.digest, &key, 7, &changed, &f->err),
        &f->err);
    assert_true(changed);
    json_t *params = json_pack("{s:i, s:i}", "batch", 1, "threads", 1);
    struct mlo_evidence e = {.project_id = p,
                             .artifact = made.digest,
                             .metric = "latency.p50",
                             .unit = "us",
                             .params = params,
                             .observed = {100, 90, 110},
                             .n = 1000,
                             .baseline = &v.artifact,
                             .comparison = "ratio",
                             .compared = {0.5, NAN, 0.6},
                             .protocol = "bench-1",
                             .engine = "cpu 1",
                             .machine_class = "test",
                             .run_id = 7};
    assert_mlo_ok(mlo_evidence_add(worker, &e, NULL, &f->err), &f->err);
    e.observed.value = 101;
    assert_mlo_ok(mlo_evidence_add(worker, &e, NULL, &f->err), &f->err);
    assert_mlo_ok(mlo_db_end(worker, MLO_OK, &f->err), &f->err);

    /* naming the same again changes nothing; naming another keeps the history */
    assert_mlo_ok(
        mlo_variant_name(worker, &actor, v.id, "int8-cpu", &made.digest, &key, 8, &changed, &f->err),
        &f->err);
    assert_false(changed);
    assert_mlo_ok(
        mlo_variant_name(worker, &actor, v.id, "int8-cpu", &other.digest, NULL, 9, &changed, &f->err),
        &f->err);
    assert_true(changed);
    assert_mlo_ok(mlo_variant_history(f->conn, v.id, "int8-cpu", &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json), 2);
    json_decref(json);
    assert_mlo_ok(
        mlo_variant_name(worker, &actor, v.id, "int8-cpu", &made.digest, &key, 9, &changed, &f->err),
        &f->err);
    assert_mlo_status(mlo_variant_name(worker, &actor, v.id, "source", &made.digest, &key, 9, NULL, &f->err),
                      MLO_EINVAL, &f->err);

    /* the same derivation cannot have made something else */
    assert_mlo_ok(mlo_derivation_record(worker, derivation, "quantize", &made.digest, 4, NULL, NULL, &f->err),
                  &f->err);
    assert_mlo_status(
        mlo_derivation_record(worker, derivation, "quantize", &other.digest, 5, NULL, NULL, &f->err),
        MLO_ECONFLICT, &f->err);
    assert_mlo_ok(mlo_derivation_find(worker, &key, &found, NULL, NULL, &f->err), &f->err);
    assert_true(mlo_digest_eq(&found, &made.digest));
    assert_mlo_status(mlo_derivation_find(worker, &found, &found, NULL, NULL, &f->err), MLO_ENOTFOUND,
                      &f->err);
    mlo_db_release(worker);

    assert_mlo_ok(mlo_variant_list(f->conn, v.id, &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json), 2);
    assert_string_equal(mlo_json_str(json_array_get(json, 0), "variant", ""), "source");
    const json_t *variant = json_array_get(json, 1), *evidence = json_object_get(variant, "evidence");
    assert_string_equal(mlo_json_str(variant, "step", ""), "quantize");
    assert_int_equal(json_array_size(evidence), 1); /* the latest of two alike */
    assert_true(mlo_json_f64(json_array_get(evidence, 0), "value", 0) == 101);
    assert_true(json_is_null(json_object_get(json_array_get(evidence, 0), "comparison_low")));
    assert_int_equal(mlo_json_i64(json_object_get(json_array_get(evidence, 0), "params"), "batch", 0), 1);
    json_decref(json);
    struct mlo_evidence_filter filter = {.run_id = 7};
    assert_mlo_ok(mlo_evidence_list(f->conn, p, &filter, NULL, &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(json, "items")), 2);
    json_decref(json);

    assert_mlo_ok(mlo_lineage_get(f->conn, p, &v.artifact, &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(json, "nodes")), 3);
    assert_int_equal(json_array_size(json_object_get(json, "edges")), 2);
    size_t i;
    json_t *node;
    int named = 0;
    json_array_foreach(json_object_get(json, "nodes"), i, node)
    {
        const char *name = json_string_value(json_array_get(json_object_get(node, "names"), 0));
        named += mlo_str_eq(name, "fashion/cnn@1/source") || mlo_str_eq(name, "fashion/cnn@1/int8-cpu") ||
                 mlo_str_eq(name, "fashion/calibration@2");
    }
    assert_int_equal(named, 3);
    json_decref(json);
    json_decref(params);
    json_decref(derivation);
}

/* The check of a token, which is the same when it is asked together with others. */
static enum mlo_status check_both(struct pg_fixture *f, const char *text, struct mlo_principal *who)
{
    struct mlo_gather *gather;
    struct mlo_token_question question;
    struct mlo_principal together;
    struct mlo_error err = {0};
    enum mlo_status alone = mlo_token_check(f->conn, text, who, &f->err),
                    status = mlo_token_ask(text, &question, &err);
    if (status == MLO_OK) {
        assert_mlo_ok(mlo_gather_new(f->server, &gather, &err), &err);
        assert_mlo_ok(mlo_gather_read(gather, &question.ask, 1, &err), &err);
        status = mlo_token_answer(f->server, &question, &together, &err);
        mlo_gather_clear(&question.ask, 1);
        mlo_gather_free(gather);
    }
    if (status != alone) { /* it expired in between */
        assert_int_equal(status, MLO_EAUTH);
        return MLO_EAUTH;
    }
    if (alone == MLO_OK)
        assert_memory_equal(who, &together, sizeof together);
    else
        assert_string_equal(err.message, f->err.message);
    return alone;
}

static void test_token__life(void **state)
{
    struct pg_fixture *f = *state;
    char text[MLO_TOKEN_TEXT_SIZE], other[MLO_TOKEN_TEXT_SIZE], late[MLO_TOKEN_TEXT_SIZE];
    int64_t p = project(f, "fashion"), id;
    struct mlo_principal who;
    json_t *list;
    assert_mlo_ok(mlo_token_create(f->conn, &root, "ci", MLO_PROMOTER, p, 0, text, &id, &f->err), &f->err);
    assert_int_equal(strlen(text), 49);
    assert_mlo_ok(check_both(f, text, &who), &f->err);
    assert_true(who.token_id == id && who.project_id == p && who.role == MLO_PROMOTER);
    assert_string_equal(who.name, "ci");
    memcpy(other, text, sizeof other);
    other[20] = other[20] == 'A' ? 'B' : 'A';
    assert_mlo_status(check_both(f, other, &who), MLO_EAUTH, &f->err);
    assert_mlo_status(check_both(f, "mlopt_x", &who), MLO_EAUTH, &f->err);
    assert_mlo_status(check_both(f, NULL, &who), MLO_EAUTH, &f->err);
    /* the text itself is nowhere in the database */
    assert_mlo_ok(mlo_token_list(f->conn, 0, &list, &f->err), &f->err);
    char *dump = json_dumps(list, 0);
    assert_null(strstr(dump, text));
    assert_non_null(strstr(dump, "last_used_at"));
    free(dump);
    json_decref(list);

    struct mlo_actor promoter = {.name = "p", .role = MLO_PROMOTER};
    assert_mlo_status(mlo_token_create(f->conn, &promoter, "x", MLO_VIEWER, 0, 0, other, NULL, &f->err),
                      MLO_EFORBIDDEN, &f->err);
    struct mlo_actor admin_of_one = {.name = "p", .role = MLO_ADMIN, .project_id = p};
    assert_mlo_status(mlo_token_create(f->conn, &admin_of_one, "x", MLO_VIEWER, 0, 0, other, NULL, &f->err),
                      MLO_EFORBIDDEN, &f->err);
    assert_mlo_status(mlo_token_create(f->conn, &root, "x", MLO_VIEWER, 0, 1, other, NULL, &f->err),
                      MLO_EINVAL, &f->err);
    const int64_t expiries_s[] = {2, 3600};
    for (int i = 0; i < 2; i++) {
        assert_mlo_ok(mlo_token_create(f->conn, &root, i ? "late" : "soon", MLO_VIEWER, 0,
                                       mlo_clock_utc_us() + expiries_s[i] * 1000000, i ? late : other, NULL,
                                       &f->err),
                      &f->err);
    }
    assert_mlo_ok(check_both(f, late, &who), &f->err);
    for (int i = 0; i < 6000 && check_both(f, other, &who) == MLO_OK; i++)
        mlo_clock_sleep_ms(20);
    assert_mlo_ok(check_both(f, late, &who), &f->err);
    assert_mlo_status(check_both(f, other, &who), MLO_EAUTH, &f->err);
    assert_non_null(strstr(f->err.message, "expired"));

    assert_mlo_ok(mlo_token_revoke(f->conn, &root, id, &f->err), &f->err);
    assert_mlo_ok(mlo_token_revoke(f->conn, &root, id, &f->err), &f->err);
    assert_mlo_status(check_both(f, text, &who), MLO_EAUTH, &f->err);
    assert_mlo_status(mlo_token_revoke(f->conn, &root, 9999, &f->err), MLO_ENOTFOUND, &f->err);
}

static void test_idempotency__replays_and_refuses(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_idempotent one = {
        .token_id = 7, .key = "k", .method = "POST", .path = "/v1/x", .body = digest_of("request")};
    struct mlo_idempotent other = one, elsewhere = one, anothers = one;
    struct mlo_idempotent_answer answer = {.http_status = 201,
                                           .headers = json_pack("{s:s}", "ETag", "\"1\"")};
    struct mlo_idempotent_answer got = {0};
    enum mlo_idempotency how;
    other.body = digest_of("another");
    elsewhere.path = "/v1/y";
    anothers.token_id = 8;
    mlo_buf_puts(&answer.body, "{\"id\":5}\n");
    assert_mlo_status(mlo_idempotency_begin(f->conn, &one, &how, &got, &f->err), MLO_EINTERNAL, &f->err);
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    assert_mlo_ok(mlo_idempotency_begin(f->conn, &one, &how, &got, &f->err), &f->err);
    assert_int_equal(how, MLO_IDEMPOTENCY_NEW);
    assert_mlo_ok(mlo_idempotency_finish(f->conn, &one, &answer, &f->err), &f->err);
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
    const struct {
        const struct mlo_idempotent *request;
        enum mlo_idempotency how;
    } cases[] = {{&one, MLO_IDEMPOTENCY_DONE},
                 {&other, MLO_IDEMPOTENCY_OTHER},
                 {&elsewhere, MLO_IDEMPOTENCY_OTHER},
                 {&anothers, MLO_IDEMPOTENCY_NEW}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
        assert_mlo_ok(mlo_idempotency_begin(f->conn, cases[i].request, &how, &got, &f->err), &f->err);
        assert_int_equal(how, cases[i].how);
        if (how == MLO_IDEMPOTENCY_DONE) {
            assert_int_equal(got.http_status, 201);
            assert_true(json_equal(got.headers, answer.headers));
            assert_string_equal(mlo_buf_str(&got.body), "{\"id\":5}\n");
        }
        assert_int_equal(mlo_db_end(f->conn, MLO_ECANCELLED, NULL), MLO_ECANCELLED);
        mlo_idempotent_answer_clear(&got);
    }
    mlo_idempotent_answer_clear(&answer);
}

static void test_ref__forms(void **state)
{
    MLO_UNUSED(state);
    struct mlo_ref r;
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_ref_parse("fashion/cnn", &r, &err), &err);
    assert_true(strcmp(r.project, "fashion") == 0 && strcmp(r.name, "cnn") == 0 && r.version == 0 &&
                !*r.variant);
    assert_mlo_ok(mlo_ref_parse("fashion/cnn@3/int8-cpu", &r, &err), &err);
    assert_true(r.version == 3 && strcmp(r.variant, "int8-cpu") == 0);
    assert_mlo_ok(mlo_ref_parse("fashion/cnn@production", &r, &err), &err);
    assert_string_equal(r.stage, "production");
    assert_mlo_ok(mlo_ref_parse("fashion/cnn@latest/source", &r, &err), &err);
    assert_true(r.version == 0 && strcmp(r.variant, "source") == 0);
    static const char *const bad[] = {"",       "cnn",   "/cnn", "a/",        "a/b@", "a/b@0",
                                      "a/b@-1", "a/b@x", "a/b/", "a/b@1/c/d", "a b/c"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++)
        assert_mlo_status(mlo_ref_parse(bad[i], &r, &err), MLO_EINVAL, &err);
}

static void test_target__implications(void **state)
{
    MLO_UNUSED(state);
    assert_true(mlo_target_satisfies("cpu:avx512-vnni", "cpu:avx2"));
    assert_false(mlo_target_satisfies("cpu:avx2", "cpu:avx512-vnni"));
    assert_true(mlo_target_satisfies("cpu:avx2,cuda:sm89", "cuda:sm80"));
    assert_false(mlo_target_satisfies("cuda:sm80", "cuda:sm89"));
    assert_false(mlo_target_satisfies("cuda:sm120", "cuda:sm90")); /* as with workers and plans */
    assert_true(mlo_target_satisfies(NULL, "any"));
    assert_false(mlo_target_satisfies(NULL, "cpu:avx2"));
    assert_true(mlo_target_rank("cpu:avx512-vnni") > mlo_target_rank("cpu:avx2"));
    assert_true(mlo_target_rank("cpu:avx2") > mlo_target_rank("any"));
    assert_false(mlo_target_valid("gpu"));
    assert_false(mlo_target_valid("cuda:smx"));
    assert_true(mlo_target_valid("cpu:neon"));
}

/* --- reads together ---------------------------------------------------------------------------- */

enum { GATHERERS = 12, GATHERINGS = 100, LANES_HELD = 2 };

static const struct mlo_sql gathered[] = {
    {"t_gather",
     "SELECT n.i, n.a || n.b, cardinality($1::text[]) FROM unnest($1::text[], $2::text[]) WITH "
     "ORDINALITY AS n(a, b, i) WHERE n.a <> 'none' ORDER BY n.i DESC",
     2},
    {"t_gather_slow",
     "SELECT n.i, pg_advisory_lock_shared(9) IS NULL, pg_advisory_unlock_shared(9) FROM "
     "unnest($1::text[]) WITH ORDINALITY AS n(a, i)",
     1},
    {"t_gather_number", "SELECT n.i, n.a::bigint FROM unnest($1::text[]) WITH ORDINALITY AS n(a, i)", 1},
};

struct gatherer {
    struct mlo_gather *gather;
    const struct mlo_sql *sql;
    _Atomic int *begun;
    int number;
    int64_t most; /* questions that one statement answered */
    bool wrong;
    enum mlo_status status; /* of gather_slowly and gather_behind */
    pthread_t thread;
};

static void *gather_main(void *arg)
{
    struct gatherer *g = arg;
    struct mlo_error err = {0};
    char text[32];
    atomic_fetch_add(g->begun, 1);
    for (int i = 0; i < GATHERINGS && !g->wrong; i++) {
        bool none = i % 10 == 9, twice = i % 3 == 0;
        snprintf(text, sizeof text, "%d.", twice ? i : g->number * 1000 + i);
        struct mlo_gather_ask asks[2] = {{.sql = g->sql, .values = {none ? "none" : text, "x"}},
                                         {.sql = g->sql, .values = {text, NULL}}};
        g->wrong =
            mlo_gather_read(g->gather, asks, 2, &err) != MLO_OK || (asks[0].row < 0) != none ||
            asks[1].row < 0 || !mlo_rows_null(&asks[1].rows, asks[1].row, 1) ||
            (!none && (strncmp(mlo_rows_text(&asks[0].rows, asks[0].row, 1), text, strlen(text)) != 0));
        if (!g->wrong)
            g->most = MLO_MAX(g->most, mlo_rows_i64(&asks[1].rows, asks[1].row, 2));
        mlo_gather_clear(asks, 2);
    }
    return NULL;
}

static void *gather_slowly(void *arg)
{
    struct gatherer *g = arg;
    struct mlo_error err = {0};
    struct mlo_gather_ask ask = {.sql = g->sql, .values = {"x"}};
    atomic_fetch_add(g->begun, 1);
    g->status = mlo_gather_read(g->gather, &ask, 1, &err);
    g->wrong = g->status != MLO_OK || ask.row != 0;
    mlo_gather_clear(&ask, 1);
    return NULL;
}

static const struct mlo_sql holders[] = {
    {"t_holders", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 9 AND NOT granted",
     0},
    {"t_holders_end",
     "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_locks WHERE locktype = 'advisory' AND objid = 9 "
     "AND NOT granted",
     0},
    {"t_holders_cancel_one",
     "SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND "
     "objid = 9 AND NOT granted LIMIT 1) AS one",
     0},
};
enum to_holders { HOLDERS_COUNT, HOLDERS_END, HOLDERS_CANCEL_ONE };

static int64_t count_holders(struct pg_fixture *f, enum to_holders what)
{
    struct mlo_rows rows = {0};
    assert_mlo_ok(mlo_db_exec(f->conn, &holders[what], NULL, &rows, &f->err), &f->err);
    int64_t count = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return count;
}

static void wait_for_lanes(struct pg_fixture *f)
{
    while (count_holders(f, HOLDERS_COUNT) < LANES_HELD)
        mlo_clock_sleep_ms(5);
}

/* Ends the connections of both lanes, when both hang on the lock. */
static void end_lanes(struct pg_fixture *f)
{
    wait_for_lanes(f);
    assert_int_equal(count_holders(f, HOLDERS_END), LANES_HELD);
}

/* Asks once, behind those. */
static void *gather_behind(void *arg)
{
    struct gatherer *g = arg;
    struct mlo_error err = {0};
    struct mlo_gather_ask ask = {.sql = g->sql, .values = {"5"}};
    atomic_fetch_add(g->begun, 1);
    g->status = mlo_gather_read(g->gather, &ask, 1, &err);
    g->wrong = g->status != MLO_OK || ask.row != 0 || mlo_rows_i64(&ask.rows, ask.row, 1) != 5;
    mlo_gather_clear(&ask, 1);
    return NULL;
}

static void gather_start(struct gatherer *g, void *(*main)(void *))
{
    int before = atomic_load(g->begun);
    assert_int_equal(pthread_create(&g->thread, NULL, main, g), 0);
    while (atomic_load(g->begun) == before)
        mlo_clock_sleep_ms(1);
}

static void test_gather__each_gets_its_own_and_one_statement_answers_many(void **state)
{
    struct pg_fixture *f = *state;
    struct gatherer all[LANES_HELD + GATHERERS];
    _Atomic int begun = 0;
    struct mlo_gather *gather;
    int64_t most = 0;
    assert_mlo_ok(mlo_gather_new(f->server, &gather, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT pg_advisory_lock(9)", &f->err), &f->err);
    for (int i = 0; i < LANES_HELD + GATHERERS; i++) {
        bool slow = i < LANES_HELD;
        all[i] =
            (struct gatherer){.gather = gather, .sql = &gathered[slow ? 1 : 0], .begun = &begun, .number = i};
        gather_start(&all[i], slow ? gather_slowly : gather_main);
        mlo_clock_sleep_ms(slow ? 20 : 5); /* the others wait behind these */
    }
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT pg_advisory_unlock(9)", &f->err), &f->err);
    for (int i = 0; i < LANES_HELD + GATHERERS; i++) {
        pthread_join(all[i].thread, NULL);
        assert_false(all[i].wrong);
        most = MLO_MAX(most, all[i].most);
    }
    assert_true(most > 2); /* more than one thread's */
    mlo_gather_free(gather);
}

/* Both lanes are made to hang on the lock, and the others wait behind them. */
static void gather_hold(struct pg_fixture *f, struct mlo_gather **gather, _Atomic int *begun,
                        struct gatherer all[LANES_HELD + GATHERERS])
{
    assert_mlo_ok(mlo_gather_new(f->server, gather, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT pg_advisory_lock(9)", &f->err), &f->err);
    for (int i = 0; i < LANES_HELD + GATHERERS; i++) {
        all[i] =
            (struct gatherer){.gather = *gather, .sql = &gathered[i < LANES_HELD ? 1 : 2], .begun = begun};
        gather_start(&all[i], i < LANES_HELD ? gather_slowly : gather_behind);
        mlo_clock_sleep_ms(i < LANES_HELD ? 20 : 5);
    }
}

/* `times`: how often both connections end before the lock is free. Returns how many failed. */
static int gather_over_ends(struct pg_fixture *f, int times)
{
    struct gatherer all[LANES_HELD + GATHERERS];
    _Atomic int begun = 0;
    struct mlo_gather *gather;
    int failed = 0;
    gather_hold(f, &gather, &begun, all);
    for (int i = 0; i < times; i++)
        end_lanes(f);
    if (times < 2)
        wait_for_lanes(f); /* they ask again */
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT pg_advisory_unlock(9)", &f->err), &f->err);
    for (int i = 0; i < LANES_HELD + GATHERERS; i++) {
        pthread_join(all[i].thread, NULL);
        assert_true(all[i].status == MLO_EUNAVAILABLE || !all[i].wrong);
        failed += all[i].status != MLO_OK;
    }
    struct mlo_gather_ask ask = {.sql = &gathered[2], .values = {"8"}};
    assert_mlo_ok(mlo_gather_read(gather, &ask, 1, &f->err), &f->err);
    assert_int_equal(mlo_rows_i64(&ask.rows, ask.row, 1), 8);
    mlo_gather_clear(&ask, 1);
    mlo_gather_free(gather);
    return failed;
}

static void test_gather__a_connection_that_ends_is_replaced_once(void **state)
{
    assert_int_equal(gather_over_ends(*state, 1), 0);
    /* both lanes, and who waited behind them */
    assert_true(gather_over_ends(*state, 2) > LANES_HELD);
}

/* A statement that ran out of its time fails those who asked with it: who waits is answered by the lane that
 * it held, while the other one still hangs. */
static void test_gather__a_cancelled_statement_is_not_that_of_who_waits(void **state)
{
    struct pg_fixture *f = *state;
    struct gatherer all[LANES_HELD + GATHERERS];
    _Atomic int begun = 0;
    struct mlo_gather *gather;
    int cancelled = 0;
    gather_hold(f, &gather, &begun, all);
    wait_for_lanes(f);
    assert_int_equal(count_holders(f, HOLDERS_CANCEL_ONE), 1);
    for (int i = LANES_HELD; i < LANES_HELD + GATHERERS; i++)
        pthread_join(all[i].thread, NULL);
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT pg_advisory_unlock(9)", &f->err), &f->err);
    for (int i = 0; i < LANES_HELD; i++) {
        pthread_join(all[i].thread, NULL);
        assert_true(all[i].status == MLO_ETIMEOUT || !all[i].wrong);
        cancelled += all[i].status == MLO_ETIMEOUT;
    }
    assert_int_equal(cancelled, 1);
    for (int i = LANES_HELD; i < LANES_HELD + GATHERERS; i++)
        assert_false(all[i].wrong);
    mlo_gather_free(gather);
}

static void test_gather__a_failure_is_told_and_over(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_gather *gather;
    struct mlo_gather_ask ask = {.sql = &gathered[2], .values = {"seven"}};
    assert_mlo_ok(mlo_gather_new(f->server, &gather, &f->err), &f->err);
    assert_mlo_status(mlo_gather_read(gather, &ask, 1, &f->err), MLO_EINVAL, &f->err);
    assert_non_null(strstr(f->err.message, "t_gather_number"));
    mlo_gather_clear(&ask, 1);
    ask.values[0] = "7";
    assert_mlo_ok(mlo_gather_read(gather, &ask, 1, &f->err), &f->err);
    assert_int_equal(mlo_rows_i64(&ask.rows, ask.row, 1), 7);
    mlo_gather_clear(&ask, 1);
    mlo_gather_free(gather);
}

#define WITH_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DB(test_sql__every_statement_prepares),
        WITH_DB(test_project__names_and_duplicates),
        WITH_DB(test_blobs__a_digest_grants_nothing),
        WITH_DB(test_version__manifest_and_source),
        WITH_DB(test_version__numbers_are_unique_under_concurrency),
        WITH_DB(test_variant__derived_measured_and_traced),
        WITH_DB(test_token__life),
        WITH_DB(test_idempotency__replays_and_refuses),
        WITH_DB(test_gather__each_gets_its_own_and_one_statement_answers_many),
        WITH_DB(test_gather__a_connection_that_ends_is_replaced_once),
        WITH_DB(test_gather__a_cancelled_statement_is_not_that_of_who_waits),
        WITH_DB(test_gather__a_failure_is_told_and_over),
        cmocka_unit_test(test_ref__forms),
        cmocka_unit_test(test_target__implications),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
