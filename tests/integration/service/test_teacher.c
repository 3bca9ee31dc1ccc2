/* A recipe that compares with a teacher: which one is found, by whom, what the step is given, and what the
 * lineage says afterwards. */
#include "tests/integration/service/service_fixture.h"

#include "pipeline/service/teacher_impl.h"

#define RECIPE(teacher)                                                                                      \
    "name: compared\ntarget: any\ndata: {evaluate: p/test}\nsteps:\n  - distill-eval: {teacher: " teacher    \
    "}\n"

static void test_sql__every_statement_prepares(void **state)
{
    assert_prepares(*state, MLO_TEACHER_SQL, MLO_TEACHER_SQL_COUNT);
}

/* A version of another project, with a label file. */
static void add_elsewhere(struct service_fixture *f)
{
    struct mlo_manifest_blob blobs[] = {{.role = "model", .name = "model.onnx"},
                                        {.role = "labels", .name = "l.txt"}};
    struct mlo_version_info info;
    int64_t project = f->project, model;
    assert_mlo_ok(mlo_project_create(f->pg->conn, &SYSTEM, "q", "", &f->project, &f->err), &f->err);
    put_blob(f, "a big model", &blobs[0].digest);
    put_blob(f, "cat\ndog\n", &blobs[1].digest);
    assert_mlo_ok(mlo_model_ensure(f->pg->conn, &SYSTEM, f->project, "big", &model, &f->err), &f->err);
    assert_mlo_ok(mlo_version_create(f->pg->conn, &SYSTEM, model, "", blobs, 2, &info, &f->err), &f->err);
    f->project = project;
}

static enum mlo_status try_submit(struct service_fixture *f, const char *text, const struct mlo_actor *actor,
                                  struct mlo_error *err)
{
    int64_t run;
    struct mlo_recipe *r = recipe(text);
    struct mlo_run_request request = {
        .project = f->project, .version = f->version, .recipe = r, .actor = actor};
    enum mlo_status status = mlo_run_submit(f->pg->conn, &request, &run, err);
    mlo_recipe_free(r);
    return status;
}

#define A20 "aaaaaaaaaaaaaaaaaaaa"
#define A80 A20 A20 A20 A20

static void test_submit__finds_the_teacher(void **state)
{
    static const struct {
        const char *recipe, *says;
        enum mlo_status status;
    } wrong[] = {
        {RECIPE("nothing@1"), "nothing", MLO_ENOTFOUND},
        {RECIPE("m@7"), "7", MLO_ENOTFOUND},
        {RECIPE("m@1/int8"), "int8", MLO_ENOTFOUND},
        {RECIPE("r/big@1"), "r", MLO_ENOTFOUND},
        {RECIPE("m@production"), "names a stage", MLO_EINVAL},
        {RECIPE("\"\""), "names none", MLO_EINVAL},
        {RECIPE("m@1/" A80 A80 A80 A80), "is longer than", MLO_EINVAL},
    };
    struct service_fixture *f = *state;
    add_elsewhere(f);
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        struct mlo_error err = {0};
        assert_mlo_status(try_submit(f, wrong[i].recipe, &SYSTEM, &err), wrong[i].status, &err);
        if (!strstr(err.message, wrong[i].says))
            fail_msg("'%s' does not say '%s'", err.message, wrong[i].says);
    }
    /* who may not read the other project is told no more than that it is not there */
    struct mlo_error err = {0};
    const struct mlo_actor bound = {
        .name = "s", .role = MLO_SUBMITTER, .project_id = f->project, .via = "api"};
    enum mlo_status status = try_submit(f, RECIPE("q/big@1"), &bound, &err);
    assert_true(status == MLO_EFORBIDDEN || status == MLO_ENOTFOUND);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run"), 0);
    /* who may is given it */
    json_t *value = get_run(f, submit(f, f->version, RECIPE("q/big"), 0));
    const json_t *teacher = json_object_get(json_object_get(value, "datasets"), "teacher");
    assert_string_equal(mlo_json_str(teacher, "name", ""), "q/big");
    assert_string_equal(mlo_json_str(teacher, "variant", ""), "source");
    assert_int_equal(mlo_json_i64(teacher, "version", 0), 1);
    assert_true(mlo_str_starts(mlo_json_str(teacher, "labels", ""), "sha256:"));
    assert_int_equal(mlo_json_i64(teacher, "size", 0), strlen("a big model"));
    json_decref(value);
    value = get_run(f, submit(f, f->version, RECIPE("m@1/source"), 0));
    teacher = json_object_get(json_object_get(value, "datasets"), "teacher");
    assert_string_equal(mlo_json_str(teacher, "name", ""), "p/m");
    assert_null(json_object_get(teacher, "labels"));
    json_decref(value);
}

/* What the step was given: the micro step keeps its job.json as its document. */
static json_t *told(struct service_fixture *f, int64_t version)
{
    struct mlo_variant_info variant;
    struct mlo_digest blob;
    struct mlo_buf text = MLO_BUF_INIT;
    uint64_t size;
    json_t *out;
    assert_mlo_ok(mlo_variant_find(f->pg->conn, version, MLO_VARIANT_SOURCE, &variant, &f->err), &f->err);
    assert_mlo_ok(
        mlo_variant_report_find(f->pg->conn, f->project, &variant.artifact, 0, &blob, &size, &f->err),
        &f->err);
    assert_mlo_ok(mlo_blob_read(f->blobs, &blob, 1 << 20, &text, &f->err), &f->err);
    assert_mlo_ok(mlo_json_parse(mlo_buf_str(&text), text.len, "the job", &out, &f->err), &f->err);
    mlo_buf_clear(&text);
    return out;
}

static void test_worker__places_the_teacher_and_names_it(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    add_elsewhere(f);
    int64_t student = add_version(f, "small", "distill-eval.document=1");
    start_worker(f, &w, 1);
    int64_t run = submit(f, student, RECIPE("q/big@1"), 0), other = submit(f, student, RECIPE("small@1"), 0);
    wait_run(f, run);
    wait_run(f, other);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_run(f, other, -1, "state", "succeeded");
    json_t *job = told(f, student);
    assert_true(mlo_str_ends(mlo_json_str(job, "teacher", ""), "/in/teacher/model.onnx"));
    json_decref(job);
    /* one edge: a model that is compared with itself is not its own student */
    assert_int_equal(count_rows(f, "select count(*) from mlopt.lineage_edge where kind = 'distilled-from'"),
                     1);
    assert_int_equal(
        count_rows(f, "select count(*) from mlopt.lineage_edge e join mlopt.version_blob c on c.digest = "
                      "e.child join mlopt.version v on v.id = c.version_id join mlopt.model m on m.id = "
                      "v.model_id join mlopt.version_blob p on p.digest = e.parent join mlopt.version o on "
                      "o.id = p.version_id join mlopt.model b on b.id = o.model_id where e.kind = "
                      "'distilled-from' and m.name = 'small' and b.name = 'big'"),
        1);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_sql__every_statement_prepares),
        SERVICE_TEST(test_submit__finds_the_teacher),
        SERVICE_TEST(test_worker__places_the_teacher_and_names_it),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
