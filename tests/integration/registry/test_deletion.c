/* Deleting, bringing back, archiving: what is refused, what stays. */
#include "tests/upkeep_fixture.h"

static enum mlo_status promote(struct upkeep *u, const struct mlo_version_info *v, const char *stage,
                               int64_t generation, const char *variant)
{
    struct mlo_release_choice choice = {"any", variant};
    struct mlo_promotion p = {.model_id = v->model_id,
                              .version = v->number,
                              .choices = &choice,
                              .choice_count = 1,
                              .stage = stage,
                              .reason = "because",
                              .if_match = &generation};
    struct mlo_move move;
    return mlo_stage_promote(u->f->conn, &root, &p, &move, &u->f->err);
}

static void refused(struct upkeep *u, const char *model, int64_t version, const char *variant,
                    const char *why, size_t reasons)
{
    struct mlo_deletion_request r = {
        .project_id = u->project, .model = model, .version = version, .variant = variant, .reason = "tidy"};
    json_t *blockers = NULL;
    assert_mlo_status(mlo_delete(u->f->conn, &root, &r, &blockers, NULL, &u->f->err), MLO_ECONFLICT,
                      &u->f->err);
    if (!strstr(u->f->err.message, why))
        fail_msg("'%s' is not in: %s", why, u->f->err.message);
    assert_int_equal(json_array_size(blockers), reasons);
    json_decref(blockers);
}

static void test_deletion__refuses_what_is_referred_to(void **state)
{
    struct upkeep u;
    upkeep_open(&u, *state);
    struct mlo_version_info one = upkeep_version(&u, "cnn", "one"), two = upkeep_version(&u, "cnn", "two"),
                            three = upkeep_version(&u, "cnn", "three");
    upkeep_variant(&u, &one, "int8", "int8 of one");
    upkeep_variant(&u, &one, "fp16", "fp16 of one");
    assert_mlo_ok(promote(&u, &one, "production", 0, "int8"), &u.f->err);
    refused(&u, "cnn", 1, NULL, "production holds it", 1);
    refused(&u, "cnn", 1, "int8", "production holds it", 1);
    refused(&u, "cnn", 0, NULL, "production holds it", 1);
    assert_mlo_ok(upkeep_delete(&u, "cnn", 1, "fp16", 60, NULL), &u.f->err); /* no release has it */
    assert_mlo_ok(promote(&u, &two, "production", 1, "source"), &u.f->err);
    refused(&u, "cnn", 1, NULL, "a rollback can bring it back", 1);
    refused(&u, "cnn", 0, NULL, "production holds it", 2);
    char sql[400];
    snprintf(sql, sizeof sql,
             "INSERT INTO run (project, version, recipe_name, recipe, target, source, datasets, created_by) "
             "SELECT %lld, v.id, 'r', '{}', 'any', b.digest, '{}', 'me' FROM version v JOIN version_blob b "
             "ON b.version_id = v.id WHERE v.id = %lld",
             (long long)u.project, (long long)three.id);
    upkeep_sql(&u, sql);
    refused(&u, "cnn", 3, NULL, "is queued", 1);
    upkeep_sql(&u, "UPDATE run SET state = 'failed', finished_at = now()");
    snprintf(sql, sizeof sql,
             "INSERT INTO approval (model_id, stage, generation, content, shown, role, token_id, actor, via, "
             "note, "
             "request_id, audit_seq, version_id) VALUES (%lld, 'staging', 0, sha256('a'), sha256('b'), "
             "'approver', "
             "1, 'ann', 'api', '', '', 1, %lld)",
             (long long)three.model_id, (long long)three.id);
    upkeep_sql(&u, sql);
    refused(&u, "cnn", 3, NULL, "approval", 1);
    upkeep_sql(&u,
               "INSERT INTO approval_end (approval_id, actor, reason, audit_seq) SELECT id, 'ann', 'no', 1 "
               "FROM approval");
    assert_mlo_ok(upkeep_delete(&u, "cnn", 3, NULL, 60, NULL), &u.f->err);
    /* a run cannot begin on what is deleted, nor a release be made of it */
    assert_mlo_status(promote(&u, &three, "staging", 0, "source"), MLO_ENOTFOUND, &u.f->err);
    refused(&u, "cnn", 2, NULL, "production holds it", 1);
    upkeep_close(&u);
}

static void test_deletion__needs_its_right_and_a_reason(void **state)
{
    struct upkeep u;
    upkeep_open(&u, *state);
    upkeep_version(&u, "cnn", "one");
    struct mlo_deletion_request r = {.project_id = u.project, .model = "cnn", .version = 1};
    assert_mlo_status(mlo_delete(u.f->conn, &root, &r, NULL, NULL, &u.f->err), MLO_EINVAL, &u.f->err);
    r.reason = "  ";
    assert_mlo_status(mlo_delete(u.f->conn, &root, &r, NULL, NULL, &u.f->err), MLO_EINVAL, &u.f->err);
    r.reason = "tidy";
    const struct mlo_actor approver = {.name = "a", .role = MLO_APPROVER};
    assert_mlo_status(mlo_delete(u.f->conn, &approver, &r, NULL, NULL, &u.f->err), MLO_EFORBIDDEN, &u.f->err);
    r.variant = "source";
    assert_mlo_status(mlo_delete(u.f->conn, &root, &r, NULL, NULL, &u.f->err), MLO_EINVAL, &u.f->err);
    r.variant = NULL;
    r.version = 7;
    assert_mlo_status(mlo_delete(u.f->conn, &root, &r, NULL, NULL, &u.f->err), MLO_ENOTFOUND, &u.f->err);
    /* the service's role cannot go round it */
    assert_mlo_status(mlo_db_exec_text(u.f->conn, "UPDATE version SET deletion_id = 1", &u.f->err),
                      MLO_EFORBIDDEN, &u.f->err);
    assert_mlo_status(mlo_db_exec_text(u.f->conn, "DELETE FROM deletion", &u.f->err), MLO_EFORBIDDEN,
                      &u.f->err);
    assert_mlo_status(
        mlo_db_exec_text(u.f->conn, "UPDATE blob SET removed_at = now(), removed_why = 'orphan'", &u.f->err),
        MLO_EFORBIDDEN, &u.f->err);
    upkeep_close(&u);
}

static void test_deletion__is_undone_within_its_grace(void **state)
{
    struct upkeep u;
    struct mlo_version_info v, found;
    int64_t id = 0, late = 0;
    upkeep_open(&u, *state);
    v = upkeep_version(&u, "cnn", "one");
    upkeep_version(&u, "cnn", "two");
    assert_mlo_ok(upkeep_delete(&u, "cnn", 2, NULL, 3600, &id), &u.f->err);
    assert_mlo_ok(mlo_version_find(u.f->conn, v.model_id, 0, &found, &u.f->err), &u.f->err);
    assert_int_equal(found.number, 1); /* the latest */
    assert_mlo_status(mlo_version_find(u.f->conn, v.model_id, 2, &found, &u.f->err), MLO_ENOTFOUND,
                      &u.f->err);
    assert_non_null(strstr(u.f->err.message, "deleted"));
    assert_mlo_ok(mlo_version_find_any(u.f->conn, v.model_id, 2, &found, &u.f->err), &u.f->err);
    assert_true(found.deleted);
    struct mlo_gc_result r = upkeep_gc(&u, 0);
    assert_int_equal(r.purged, 0);
    assert_true(upkeep_has(&u, "two"));
    assert_mlo_status(mlo_undelete(u.f->conn, &root, u.project, id, "", NULL, &u.f->err), MLO_EINVAL,
                      &u.f->err);
    assert_mlo_ok(mlo_undelete(u.f->conn, &root, u.project, id, "it was needed", NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_version_find(u.f->conn, v.model_id, 2, &found, &u.f->err), &u.f->err);
    assert_mlo_status(mlo_undelete(u.f->conn, &root, u.project, id, "again", NULL, &u.f->err), MLO_ECONFLICT,
                      &u.f->err);
    assert_mlo_ok(upkeep_delete(&u, "cnn", 2, NULL, 0, &late), &u.f->err);
    r = upkeep_gc(&u, 0);
    assert_int_equal(r.purged, 1);
    assert_int_equal(r.removed, 1);
    assert_false(upkeep_has(&u, "two"));
    assert_mlo_status(mlo_undelete(u.f->conn, &root, u.project, late, "late", NULL, &u.f->err), MLO_ECONFLICT,
                      &u.f->err);
    json_t *list;
    assert_mlo_ok(mlo_deletion_list(u.f->conn, u.project, NULL, &list, &u.f->err), &u.f->err);
    json_t *first = json_array_get(json_object_get(list, "items"), 0);
    assert_string_equal(mlo_json_str(first, "state", ""), "purged");
    assert_string_equal(mlo_json_str(first, "object", ""), "fashion/cnn@2");
    json_decref(list);
    upkeep_close(&u);
}

/* Evidence, lineage and the row stay; the number is never given again. */
static void test_deletion__leaves_a_tombstone(void **state)
{
    struct upkeep u;
    struct mlo_version_info v, again;
    int64_t id;
    upkeep_open(&u, *state);
    v = upkeep_version(&u, "cnn", "one");
    struct mlo_evidence e = {.project_id = u.project,
                             .artifact = v.artifact,
                             .metric = "top1",
                             .unit = "1",
                             .observed = {0.9, 0.8, 0.95},
                             .protocol = "p",
                             .engine = "e",
                             .machine_class = "m"};
    assert_mlo_ok(mlo_evidence_add(u.f->conn, &e, NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(upkeep_delete(&u, "cnn", 0, NULL, 0, &id), &u.f->err);
    assert_mlo_status(mlo_model_find(u.f->conn, u.project, "cnn", NULL, &u.f->err), MLO_ENOTFOUND, &u.f->err);
    upkeep_gc(&u, 0);
    assert_false(upkeep_has(&u, "one"));
    static const struct mlo_sql count = {"test_evidence", "SELECT count(*) FROM evidence WHERE artifact = $1",
                                         1};
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_digest(&p, &v.artifact);
    assert_mlo_ok(mlo_db_exec(u.f->conn, &count, &p, &rows, &u.f->err), &u.f->err);
    assert_int_equal(mlo_rows_i64(&rows, 0, 0), 1);
    mlo_rows_clear(&rows);
    again = upkeep_version(&u, "cnn", "one"); /* the same bytes under the same name */
    assert_int_equal(again.model_id, v.model_id);
    assert_int_equal(again.number, 2);
    assert_mlo_status(mlo_version_find(u.f->conn, v.model_id, 1, &v, &u.f->err), MLO_ENOTFOUND, &u.f->err);
    upkeep_clean(&u);
    upkeep_close(&u);
}

static void test_deletion__of_a_model_takes_its_versions(void **state)
{
    struct upkeep u;
    struct mlo_version_info v;
    int64_t one = 0, model = 0;
    upkeep_open(&u, *state);
    upkeep_version(&u, "cnn", "one");
    v = upkeep_version(&u, "cnn", "two");
    assert_mlo_ok(upkeep_delete(&u, "cnn", 1, NULL, 60, &one), &u.f->err);
    assert_mlo_ok(upkeep_delete(&u, "cnn", 0, NULL, 60, &model), &u.f->err);
    assert_mlo_status(mlo_undelete(u.f->conn, &root, u.project, one, "back", NULL, &u.f->err), MLO_ECONFLICT,
                      &u.f->err);
    assert_mlo_ok(mlo_undelete(u.f->conn, &root, u.project, model, "back", NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_version_find(u.f->conn, v.model_id, 2, &v, &u.f->err), &u.f->err);
    assert_mlo_status(mlo_version_find(u.f->conn, v.model_id, 1, &v, &u.f->err), MLO_ENOTFOUND, &u.f->err);
    assert_mlo_ok(mlo_undelete(u.f->conn, &root, u.project, one, "back", NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_version_find(u.f->conn, v.model_id, 1, &v, &u.f->err), &u.f->err);
    upkeep_close(&u);
}

static void test_deletion__of_datasets(void **state)
{
    struct upkeep u;
    struct mlo_dataset_info d;
    upkeep_open(&u, *state);
    struct mlo_manifest_blob file = {.role = "data", .name = "d.npz", .digest = upkeep_put(&u, "data")};
    assert_mlo_ok(
        mlo_dataset_version_create(u.f->conn, &root, u.project, "train", "", NULL, &file, 1, &d, &u.f->err),
        &u.f->err);
    struct mlo_version_info v = upkeep_version(&u, "cnn", "one");
    char sql[500];
    snprintf(
        sql, sizeof sql,
        "INSERT INTO run (project, version, recipe_name, recipe, target, source, datasets, created_by) "
        "SELECT %lld, v.id, 'r', '{}', 'any', b.digest, '{\"calibrate\":{\"id\":%lld}}', 'me' FROM version v "
        "JOIN version_blob b ON b.version_id = v.id WHERE v.id = %lld",
        (long long)u.project, (long long)d.version_id, (long long)v.id);
    upkeep_sql(&u, sql);
    struct mlo_deletion_request r = {
        .project_id = u.project, .dataset = "train", .reason = "consent withdrawn"};
    assert_mlo_status(mlo_delete(u.f->conn, &root, &r, NULL, NULL, &u.f->err), MLO_ECONFLICT, &u.f->err);
    upkeep_sql(&u, "UPDATE run SET state = 'failed', finished_at = now()");
    assert_mlo_ok(mlo_delete(u.f->conn, &root, &r, NULL, NULL, &u.f->err), &u.f->err);
    assert_mlo_status(mlo_dataset_find(u.f->conn, u.project, "train", 0, &d, &u.f->err), MLO_ENOTFOUND,
                      &u.f->err);
    upkeep_gc(&u, 0);
    assert_false(upkeep_has(&u, "data"));
    file.digest = upkeep_put(&u, "data");
    assert_mlo_ok(
        mlo_dataset_version_create(u.f->conn, &root, u.project, "train", "", NULL, &file, 1, &d, &u.f->err),
        &u.f->err);
    assert_int_equal(d.number, 2);
    upkeep_clean(&u);
    upkeep_close(&u);
}

static void test_archive__hides_and_holds(void **state)
{
    struct upkeep u;
    struct mlo_version_info one, two, found;
    bool changed;
    upkeep_open(&u, *state);
    one = upkeep_version(&u, "cnn", "one");
    two = upkeep_version(&u, "cnn", "two");
    assert_mlo_ok(mlo_version_archive(u.f->conn, &root, &two, true, "old", &changed, &u.f->err), &u.f->err);
    assert_true(changed);
    assert_mlo_ok(mlo_version_archive(u.f->conn, &root, &two, true, "old", &changed, &u.f->err), &u.f->err);
    assert_false(changed);
    assert_mlo_ok(mlo_version_find(u.f->conn, one.model_id, 0, &found, &u.f->err), &u.f->err);
    assert_int_equal(found.number, 1);
    assert_mlo_ok(mlo_version_find(u.f->conn, one.model_id, 2, &found, &u.f->err), &u.f->err);
    assert_true(found.archived);
    assert_mlo_status(promote(&u, &two, "staging", 0, "source"), MLO_ECONFLICT, &u.f->err);
    upkeep_gc(&u, 0);
    assert_true(upkeep_has(&u, "two"));
    assert_mlo_ok(mlo_version_archive(u.f->conn, &root, &two, false, "needed", NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(promote(&u, &two, "staging", 0, "source"), &u.f->err);
    assert_mlo_status(mlo_version_archive(u.f->conn, &root, &two, true, "old", NULL, &u.f->err),
                      MLO_ECONFLICT, &u.f->err);
    upkeep_close(&u);
}

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_deletion__refuses_what_is_referred_to),
        T(test_deletion__needs_its_right_and_a_reason),
        T(test_deletion__is_undone_within_its_grace),
        T(test_deletion__leaves_a_tombstone),
        T(test_deletion__of_a_model_takes_its_versions),
        T(test_deletion__of_datasets),
        T(test_archive__hides_and_holds),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
