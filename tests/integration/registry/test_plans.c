/* Compiled plans beside variants. */
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

static struct mlo_digest digest_of(const char *text)
{
    struct mlo_digest d;
    mlo_digest_of(text, strlen(text), &d);
    return d;
}

static const char SIGNER_A[] = "ed25519:0000000000000000000000000000000000000000000000000000000000000000";
static const char SIGNER_B[] = "ed25519:1111111111111111111111111111111111111111111111111111111111111111";

struct fixture_ids {
    int64_t project, version;
    struct mlo_digest model, plan;
};

static struct fixture_ids a_version(struct pg_fixture *f)
{
    struct fixture_ids ids = {.model = digest_of("a model"), .plan = digest_of("a plan")};
    int64_t model;
    struct mlo_version_info info;
    struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx", .digest = ids.model};
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "p", &ids.project, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, ids.project, &ids.model, 7, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, ids.project, &ids.plan, 6, &f->err), &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, ids.project, "m", &model, &f->err), &f->err);
    assert_mlo_ok(mlo_version_create(f->conn, &root, model, "", &b, 1, &info, &f->err), &f->err);
    ids.version = info.id;
    return ids;
}

/* As the worker, the only role that adds plans. */
static enum mlo_status add(struct pg_fixture *f, const struct fixture_ids *ids, const char *machine,
                           const char *signer)
{
    json_t *fingerprint = json_pack("{s:s, s:i}", "machine", machine, "batch", 1);
    struct mlo_variant_plan plan = {.project_id = ids->project,
                                    .artifact = ids->model,
                                    .fingerprint = fingerprint,
                                    .blob = ids->plan,
                                    .size_bytes = 6,
                                    .signer = signer,
                                    .machine_class = machine};
    struct mlo_db_conn *worker;
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    enum mlo_status status = mlo_variant_plan_add(worker, &plan, &f->err);
    mlo_db_release(worker);
    json_decref(fingerprint);
    return status;
}

static void test_plans__stand_beside_their_variant(void **state)
{
    struct pg_fixture *f = *state;
    struct fixture_ids ids = a_version(f);
    assert_mlo_ok(add(f, &ids, "zen5", SIGNER_A), &f->err);
    assert_mlo_ok(add(f, &ids, "zen5", SIGNER_A), &f->err); /* the same again */
    assert_mlo_ok(add(f, &ids, "zen5", SIGNER_B), &f->err); /* another key */
    assert_mlo_ok(add(f, &ids, "spr", SIGNER_A), &f->err);
    json_t *variants;
    assert_mlo_ok(mlo_variant_list(f->conn, ids.version, &variants, &f->err), &f->err);
    const json_t *source = json_array_get(variants, 0), *plans = json_object_get(source, "plans");
    assert_int_equal(json_array_size(plans), 3);
    const json_t *newest = json_array_get(plans, 0);
    assert_string_equal(mlo_json_str(newest, "machine_class", ""), "spr");
    assert_string_equal(mlo_json_str(newest, "signer", ""), SIGNER_A);
    assert_string_equal(mlo_json_str(json_object_get(newest, "made_for"), "machine", ""), "spr");
    json_decref(variants);
}

static void test_plans__are_of_models_that_the_project_has(void **state)
{
    struct pg_fixture *f = *state;
    struct fixture_ids ids = a_version(f);
    ids.model = digest_of("somebody else's");
    assert_int_not_equal(add(f, &ids, "zen5", SIGNER_A), MLO_OK);
    ids.model = digest_of("a model");
    assert_int_not_equal(add(f, &ids, "zen5", "nobody"), MLO_OK);
}

/* Whoever takes the server over cannot put a plan beside a variant. */
static void test_plans__are_not_added_by_the_server(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *worker;
    static const char *const refused[] = {
        ("INSERT INTO plan (project_id, artifact, fingerprint, made_for, blob, size, signer, machine_class) "
         "VALUES (1, '', '', '', '', 0, '', '')"),
        "UPDATE plan SET size = 0", "DELETE FROM plan", "TRUNCATE plan"};
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        assert_mlo_status(mlo_db_exec_text(f->conn, refused[i], &f->err), MLO_EFORBIDDEN, &f->err);
        assert_string_equal(mlo_db_sqlstate(f->conn), "42501");
    }
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT size FROM plan", &f->err), &f->err);
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    for (size_t i = 1; i < MLO_COUNT(refused); i++)
        assert_mlo_status(mlo_db_exec_text(worker, refused[i], &f->err), MLO_EFORBIDDEN, &f->err);
    mlo_db_release(worker);
}

#define WITH_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DB(test_plans__stand_beside_their_variant),
        WITH_DB(test_plans__are_not_added_by_the_server),
        WITH_DB(test_plans__are_of_models_that_the_project_has),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
