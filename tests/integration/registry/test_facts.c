/* What a version says about itself: checked, part of the manifest, as rows, in the lineage. */
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static struct mlo_manifest_blob blob(struct pg_fixture *f, int64_t project, const char *role,
                                     const char *content)
{
    struct mlo_manifest_blob b = {.role = role, .name = "file"};
    mlo_digest_of(content, strlen(content), &b.digest);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, project, &b.digest, strlen(content), &f->err), &f->err);
    return b;
}

static int64_t project(struct pg_fixture *f, const char *name)
{
    int64_t id;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, name, &id, &f->err), &f->err);
    return id;
}

static enum mlo_status push(struct pg_fixture *f, int64_t project_id, const char *content, const char *facts,
                            struct mlo_version_info *out)
{
    json_t *given = facts ? json_loads(facts, 0, NULL) : NULL;
    int64_t model;
    struct mlo_manifest_blob b = blob(f, project_id, "model", content);
    assert_true(!facts || given);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, project_id, "net", &model, &f->err), &f->err);
    const struct mlo_version_content c = {.facts = given, .blobs = &b, .count = 1};
    memset(&f->err, 0, sizeof f->err);
    enum mlo_status status = mlo_version_add(f->conn, &root, model, &c, out, &f->err);
    json_decref(given);
    return status;
}

/* A number that a statement gives. */
static void test_facts__are_in_the_manifest(void **state)
{
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo");
    struct mlo_manifest_blob d = blob(f, p, "data", "samples");
    struct mlo_dataset_info data;
    struct mlo_version_info one, again, other, plain;
    json_t *facts, *version;
    char digest[MLO_DIGEST_TEXT_SIZE], text[2048];
    json_t *of_data = json_loads("{\"licence\": \"CC-BY-4.0\", \"tags\": {\"split\": \"train\"}}", 0, NULL);
    const struct mlo_dataset_content content = {.facts = of_data, .blobs = &d, .count = 1};
    assert_mlo_ok(mlo_dataset_version_add(f->conn, &root, p, "train", &content, &data, &f->err), &f->err);
    json_decref(of_data);
    mlo_digest_text(&data.manifest, digest);

    static const char *given =
        "{\"code\": {\"remote\": \"https://me:secret@host/org/repo.git\", \"commit\": \"" COMMIT
        "\", \"dirty\": true}, \"datasets\": [\"train\"], \"params\": {\"lr\": 0.01, \"opt\": \"sgd\", "
        "\"amp\": true}, \"metrics\": {\"val/top1\": 1, \"loss\": -0.0}, \"tags\": {\"team\": \"vision\", "
        "\"nightly\": \"\"}, \"licence\": \"Apache-2.0\"}";
    assert_mlo_ok(push(f, p, "weights", given, &one), &f->err);
    assert_mlo_ok(mlo_version_facts(f->conn, one.id, &facts, &f->err), &f->err);
    struct mlo_buf kept = MLO_BUF_INIT;
    mlo_json_canonical(facts, &kept);
    snprintf(
        text, sizeof text,
        "{\"code\":{\"commit\":\"" COMMIT
        "\",\"dirty\":true,\"remote\":\"https://host/org/repo.git\"},\"datasets\":[{\"digest\":\"%s\","
        "\"name\":\"train\",\"version\":1}],\"licence\":\"Apache-2.0\",\"metrics\":{\"loss\":0,"
        "\"val/top1\":1},\"params\":{\"amp\":true,\"lr\":0.01,\"opt\":\"sgd\"},\"tags\":{\"nightly\":\"\","
        "\"team\":\"vision\"}}",
        digest);
    if (strcmp(mlo_buf_str(&kept), text) != 0)
        fail_msg("%s\nis not\n%s", mlo_buf_str(&kept), text);
    mlo_buf_clear(&kept);
    assert_mlo_ok(mlo_version_get(f->conn, one.id, &version, &f->err), &f->err);
    assert_true(json_equal(json_object_get(version, "facts"), facts));
    json_decref(version);

    /* they are part of what the version is; what was read can be given again */
    char *dump = json_dumps(facts, 0);
    assert_mlo_ok(push(f, p, "weights", dump, &again), &f->err);
    assert_true(!again.created && again.id == one.id);
    free(dump);
    json_decref(facts);
    assert_mlo_ok(push(f, p, "weights", "{\"tags\": {\"team\": \"audio\"}}", &other), &f->err);
    assert_true(other.created && other.number == 2);
    assert_mlo_ok(push(f, p, "weights", "{\"tags\": {}, \"code\": null}", &plain), &f->err);
    assert_mlo_ok(push(f, p, "weights", NULL, &again), &f->err);
    assert_true(plain.created && !again.created);
    assert_mlo_ok(mlo_version_facts(f->conn, plain.id, &facts, &f->err), &f->err);
    assert_int_equal(json_object_size(facts), 0);
    json_decref(facts);

    assert_mlo_ok(mlo_dataset_get(f->conn, data.version_id, &version, &f->err), &f->err);
    assert_string_equal(mlo_json_str(json_object_get(version, "facts"), "licence", ""), "CC-BY-4.0");
    json_decref(version);
}

static void test_facts__are_rows_and_lineage(void **state)
{
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo");
    struct mlo_manifest_blob d = blob(f, p, "data", "samples");
    struct mlo_dataset_info data;
    struct mlo_version_info one, two;
    assert_mlo_ok(mlo_dataset_version_create(f->conn, &root, p, "train", "", NULL, &d, 1, &data, &f->err),
                  &f->err);
    assert_mlo_ok(push(f, p, "a",
                       "{\"datasets\": [\"train@1\"], \"params\": {\"lr\": 1e-3, \"opt\": \"sgd\"}, "
                       "\"metrics\": {\"top1\": 0.5}, \"code\": {\"commit\": \"" COMMIT
                       "\", \"dirty\": false}}",
                       &one),
                  &f->err);
    assert_mlo_ok(push(f, p, "b", "{\"params\": {\"lr\": \"0.001\"}}", &two), &f->err);
    /* model, author, version of each; dataset (digest, name), lr, opt, top1, commit, dirty; lr */
    assert_int_equal(pg_fixture_number(f->server, "SELECT count(*) FROM version_fact"), 3 + 7 + 3 + 1);
    assert_int_equal(pg_fixture_number(f->server, "SELECT count(*) FROM fact_name"), 3 + 7);
    assert_int_equal(
        pg_fixture_number(f->server,
                          "SELECT count(*) FROM version_fact r JOIN fact_name n ON n.id = r.name_id WHERE "
                          "n.kind = 'param' AND n.name = 'lr' AND r.text = '0.001' AND r.number = 0.001"),
        1);
    assert_int_equal(
        pg_fixture_number(f->server,
                          "SELECT count(*) FROM version_fact r JOIN fact_name n ON n.id = r.name_id WHERE "
                          "n.kind = 'param' AND n.name = 'lr' AND r.text = '0.001' AND r.number IS NULL"),
        1);
    assert_int_equal(
        pg_fixture_number(f->server, "SELECT count(*) FROM lineage_edge WHERE kind = 'trained-on'"), 1);
    assert_mlo_status(mlo_db_exec_text(f->conn, "DELETE FROM version_fact", &f->err), MLO_EFORBIDDEN,
                      &f->err);
    assert_mlo_status(mlo_db_exec_text(f->conn, "UPDATE version_fact SET number = 1", &f->err),
                      MLO_EFORBIDDEN, &f->err);
}

static void test_facts__name_two_versions_of_a_dataset_and_none_deleted(void **state)
{
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo");
    struct mlo_manifest_blob d[] = {blob(f, p, "data", "one"), blob(f, p, "data", "two")};
    struct mlo_dataset_info data[2];
    struct mlo_version_info v;
    char digest[MLO_DIGEST_TEXT_SIZE], facts[256];
    for (int i = 0; i < 2; i++)
        assert_mlo_ok(
            mlo_dataset_version_create(f->conn, &root, p, "train", "", NULL, &d[i], 1, &data[i], &f->err),
            &f->err);
    assert_mlo_ok(push(f, p, "a", "{\"datasets\": [\"train@1\", \"train@2\"]}", &v), &f->err);
    assert_int_equal(
        pg_fixture_number(f->server, "SELECT count(*) FROM lineage_edge WHERE kind = 'trained-on'"), 2);
    const struct mlo_deletion_request gone = {
        .project_id = p, .dataset = "train", .version = 1, .reason = "wrong labels", .grace_s = 60};
    assert_mlo_ok(mlo_delete(f->conn, &root, &gone, NULL, NULL, &f->err), &f->err);
    snprintf(facts, sizeof facts, "{\"datasets\": [\"%s\"]}", mlo_digest_text(&data[0].manifest, digest));
    assert_mlo_status(push(f, p, "b", facts, &v), MLO_ENOTFOUND, &f->err);
}

static void test_facts__name_the_teacher(void **state)
{
    static const struct {
        const char *facts;
        enum mlo_status status;
    } wrong[] = {
        {"{\"teacher\": \"net\"}", MLO_EINVAL},
        {"{\"teacher\": \"net@production\"}", MLO_EINVAL},
        {"{\"teacher\": 3}", MLO_EINVAL},
        {"{\"teacher\": \"other/net@1\"}", MLO_EINVAL},
        {"{\"teacher\": \"net@9\"}", MLO_ENOTFOUND},
        {"{\"teacher\": \"none@1\"}", MLO_ENOTFOUND},
        {"{\"teacher\": \"net@1/int8\"}", MLO_ENOTFOUND},
        {"{\"teacher\": {\"name\": \"net\"}}", MLO_EINVAL},
    };
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo"), q = project(f, "apart");
    struct mlo_version_info big, small, again;
    json_t *version, *lineage;
    assert_mlo_ok(push(f, p, "big", NULL, &big), &f->err);
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        assert_mlo_status(push(f, p, "small", wrong[i].facts, &small), wrong[i].status, &f->err);
        assert_true(mlo_str_starts(f->err.where, "facts.teacher"));
    }
    assert_mlo_status(push(f, q, "small", "{\"teacher\": \"net@1\"}", &small), MLO_ENOTFOUND, &f->err);
    assert_mlo_ok(push(f, p, "small", "{\"teacher\": \"net@1\"}", &small), &f->err);
    assert_mlo_ok(mlo_version_get(f->conn, small.id, &version, &f->err), &f->err);
    const json_t *teacher = json_object_get(json_object_get(version, "facts"), "teacher");
    assert_string_equal(mlo_json_str(teacher, "name", ""), "net");
    assert_string_equal(mlo_json_str(teacher, "variant", ""), "source");
    assert_int_equal(mlo_json_i64(teacher, "version", 0), 1);
    /* as it was answered, it is the same again */
    char *facts = json_dumps(json_object_get(version, "facts"), 0);
    assert_mlo_ok(push(f, p, "small", facts, &again), &f->err);
    assert_int_equal(again.id, small.id);
    free(facts);
    json_decref(version);
    assert_mlo_ok(mlo_lineage_get(f->conn, p, &small.artifact, &lineage, &f->err), &f->err);
    const json_t *edge = json_array_get(json_object_get(lineage, "edges"), 0);
    assert_string_equal(mlo_json_str(edge, "kind", ""), "distilled-from");
    assert_int_equal(json_array_size(json_object_get(lineage, "nodes")), 2);
    json_decref(lineage);
}

/* A pruned variant that was pulled, fine-tuned and pushed again names what it began with. */
static void test_facts__name_what_it_was_made_of(void **state)
{
    static const struct {
        const char *facts, *says;
        enum mlo_status status;
    } wrong[] = {
        {"{\"derived_from\": \"net\"}", "what it was derived from is MODEL@VERSION", MLO_EINVAL},
        {"{\"derived_from\": \"net@staging\"}", "of this project", MLO_EINVAL},
        {"{\"derived_from\": \"other/net@1\"}", "of this project", MLO_EINVAL},
        {"{\"derived_from\": [1]}", "of this project", MLO_EINVAL},
        {"{\"derived_from\": \"net@9\"}", "9", MLO_ENOTFOUND},
        {"{\"derived_from\": \"net@1/thin\"}", "thin", MLO_ENOTFOUND},
    };
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo"), q = project(f, "apart");
    struct mlo_version_info first, tuned, last, again;
    json_t *version, *lineage;
    assert_mlo_ok(push(f, p, "float", NULL, &first), &f->err);
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        assert_mlo_status(push(f, p, "tuned", wrong[i].facts, &tuned), wrong[i].status, &f->err);
        assert_true(mlo_str_starts(f->err.where, "facts.derived_from"));
        if (!strstr(f->err.message, wrong[i].says))
            fail_msg("'%s' does not say '%s'", f->err.message, wrong[i].says);
    }
    assert_mlo_status(push(f, q, "tuned", "{\"derived_from\": \"net@1\"}", &tuned), MLO_ENOTFOUND, &f->err);
    assert_mlo_ok(push(f, p, "tuned", "{\"derived_from\": \"net@1/source\"}", &tuned), &f->err);
    assert_mlo_ok(mlo_version_get(f->conn, tuned.id, &version, &f->err), &f->err);
    char *facts = json_dumps(json_object_get(version, "facts"), 0);
    assert_non_null(strstr(facts, "derived_from"));
    assert_mlo_ok(push(f, p, "tuned", facts, &again), &f->err); /* as it was answered, it is the same */
    assert_int_equal(again.id, tuned.id);
    free(facts);
    json_decref(version);
    assert_mlo_ok(mlo_lineage_get(f->conn, p, &tuned.artifact, &lineage, &f->err), &f->err);
    const json_t *edge = json_array_get(json_object_get(lineage, "edges"), 0);
    char child[MLO_DIGEST_TEXT_SIZE], parent[MLO_DIGEST_TEXT_SIZE];
    assert_string_equal(mlo_json_str(edge, "kind", ""), MLO_LINEAGE_FINE_TUNED_FROM);
    assert_string_equal(mlo_json_str(edge, "child", ""), mlo_digest_text(&tuned.artifact, child));
    assert_string_equal(mlo_json_str(edge, "parent", ""), mlo_digest_text(&first.artifact, parent));
    json_decref(lineage);
    /* the file itself, and a circle: neither the version nor the edge stays */
    assert_mlo_ok(push(f, p, "later", "{\"derived_from\": \"net@2\"}", &last), &f->err);
    assert_mlo_status(push(f, p, "tuned", "{\"derived_from\": \"net@2\"}", &again), MLO_EINVAL, &f->err);
    assert_non_null(strstr(f->err.message, "is the same file as net@2/source"));
    assert_mlo_status(push(f, p, "float", "{\"derived_from\": \"net@3\"}", &again), MLO_EINVAL, &f->err);
    assert_non_null(strstr(f->err.message, "is an ancestor of net@3/source"));
    assert_int_equal(
        pg_fixture_number(f->server, "SELECT count(*) FROM lineage_edge WHERE kind = 'fine-tuned-from'"), 2);
    assert_int_equal(pg_fixture_number(f->server, "SELECT count(*) FROM version"), 3);
}

static void test_facts__of_another_project_are_not_to_be_had(void **state)
{
    struct pg_fixture *f = *state;
    int64_t mine = project(f, "mine"), theirs = project(f, "theirs");
    struct mlo_manifest_blob d = blob(f, theirs, "data", "secret");
    struct mlo_dataset_info data;
    struct mlo_version_info v;
    char digest[MLO_DIGEST_TEXT_SIZE], facts[256];
    assert_mlo_ok(
        mlo_dataset_version_create(f->conn, &root, theirs, "train", "", NULL, &d, 1, &data, &f->err),
        &f->err);
    snprintf(facts, sizeof facts, "{\"datasets\": [\"%s\"]}", mlo_digest_text(&data.manifest, digest));
    assert_mlo_status(push(f, mine, "w", facts, &v), MLO_ENOTFOUND, &f->err);
    assert_string_equal(f->err.where, "facts.datasets[0]");
    assert_mlo_status(push(f, mine, "w", "{\"datasets\": [\"train\"]}", &v), MLO_ENOTFOUND, &f->err);
    assert_mlo_ok(push(f, theirs, "w", facts, &v), &f->err);
}

static void test_facts__errors_name_the_member(void **state)
{
    static const struct {
        const char *facts, *where;
    } cases[] = {
        {"[]", "field 'facts'"},
        {"{\"param\": {}}", "field 'facts'"},
        {"{\"params\": []}", "facts.params"},
        {"{\"params\": {\"a b\": 1}}", "facts.params.a b"},
        {"{\"params\": {\"\": 1}}", "facts.params."},
        {"{\"params\": {\"a\": [1]}}", "facts.params.a"},
        {"{\"params\": {\"a\": \"two\\nlines\"}}", "facts.params.a"},
        {"{\"metrics\": {\"a\": \"0.9\"}}", "facts.metrics.a"},
        {"{\"metrics\": {\"a\": null}}", "facts.metrics.a"},
        {"{\"tags\": {\"a\": 1}}", "facts.tags.a"},
        {"{\"licence\": \"\"}", "facts.licence"},
        {"{\"code\": {\"commit\": \"abc\", \"dirty\": false}}", "facts.code.commit"},
        {"{\"code\": {\"dirty\": false}}", "facts.code.commit"},
        {"{\"code\": {\"commit\": \"" COMMIT "\"}}", "facts.code.dirty"},
        {"{\"code\": {\"commit\": \"" COMMIT "\", \"dirty\": 0}}", "facts.code.dirty"},
        {"{\"code\": {\"commit\": \"" COMMIT "\", \"dirty\": true, \"remotes\": 1}}", "facts.code.remotes"},
        {"{\"code\": {\"commit\": \"" COMMIT "\", \"dirty\": true, \"remote\": \"a\\tb\"}}",
         "facts.code.remote"},
        {"{\"datasets\": {}}", "facts.datasets"},
        {"{\"datasets\": [7]}", "facts.datasets"},
        {"{\"datasets\": [\"a/b\"]}", "facts.datasets.a/b"},
        {"{\"datasets\": [\"a@0\"]}", "facts.datasets.a@0"},
        {"{\"datasets\": [\"sha256:12\"]}", "facts.datasets.sha256:12"},
    };
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo");
    struct mlo_version_info v;
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        enum mlo_status status = push(f, p, "w", cases[i].facts, &v);
        if (status != MLO_EINVAL || strcmp(f->err.where, cases[i].where) != 0)
            fail_msg("%s: %s at '%s': %s", cases[i].facts, mlo_status_info(status)->code, f->err.where,
                     f->err.message);
    }
    json_t *many = json_object(), *facts = json_object();
    json_object_set_new(facts, "tags", many);
    for (int i = 0; i <= MLO_FACTS_TAGS_MAX; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        json_object_set_new(many, name, json_string(""));
    }
    char *text = json_dumps(facts, 0);
    assert_mlo_status(push(f, p, "w", text, &v), MLO_EINVAL, &f->err);
    free(text);
    json_object_del(many, "t0");
    text = json_dumps(facts, 0);
    assert_mlo_ok(push(f, p, "w", text, &v), &f->err);
    free(text);
    json_decref(facts);
}

/* The schema before facts, with a version in it: it is found by model, number and author afterwards. */
static void test_facts__of_versions_before_them(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_db_conn *owner;
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    static const char *before =
        "INSERT INTO project (name, created_by) VALUES ('old', 'me'); "
        "INSERT INTO model (project_id, name, created_by) SELECT id, 'net', 'me' FROM project; "
        "INSERT INTO version (model_id, number, manifest_digest, manifest, created_by) "
        "SELECT m.id, n, sha256(n::text::bytea), '{\"files\":[]}', 'ann' FROM model m, generate_series(1, 3) "
        "n";
    size_t all, older = 0;
    const struct mlo_migration *set = mlo_migrations(&all);
    while (older < all && set[older].number < 12)
        older++;
    assert_mlo_ok(mlo_migrate_set(owner, set, older, NULL, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(owner, before, &f->err), &f->err);
    assert_mlo_ok(mlo_migrate(owner, NULL, &f->err), &f->err);
    mlo_db_release(owner);
    assert_mlo_ok(mlo_db_acquire(f->server, &f->conn, &f->err), &f->err);
    assert_int_equal(pg_fixture_number(f->server, "SELECT count(*) FROM version_fact"), 9);
    assert_int_equal(
        pg_fixture_number(f->server,
                          "SELECT count(*) FROM version_fact r JOIN fact_name n ON n.id = r.name_id JOIN "
                          "version v ON v.id = r.version_id WHERE n.kind = 'version' AND r.number = "
                          "v.number AND r.text = ''"),
        3);
    assert_int_equal(
        pg_fixture_number(f->server,
                          "SELECT count(*) FROM version_fact r JOIN fact_name n ON n.id = r.name_id WHERE "
                          "(n.kind, r.text) IN (('model', 'net'), ('author', 'ann'))"),
        6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_facts__are_in_the_manifest, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_facts__are_rows_and_lineage, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_facts__name_two_versions_of_a_dataset_and_none_deleted,
                                        pg_fixture_setup, pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_facts__name_the_teacher, pg_fixture_setup, pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_facts__name_what_it_was_made_of, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_facts__of_another_project_are_not_to_be_had, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_facts__errors_name_the_member, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_facts__of_versions_before_them, pg_fixture_setup_empty,
                                        pg_fixture_teardown),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
