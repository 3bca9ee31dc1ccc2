/* SIGKILL at every step that writes, of uploads, promotions with their ledger, deletion with garbage
 * collection and repair; and PostgreSQL's connections cut at every step of the last.
 *
 * After each: what was acknowledged is there, no row is without its bytes, the audit chains and the ledger
 * verify, and the next one goes on. tests/kill_fixture.h says what a step is and how many a run takes. */
#include "tests/kill_fixture.h"

/* --- what is done -------------------------------------------------------------------------------------- */

static void content(const char *tag, const char *kind, char out[64])
{
    snprintf(out, 64, "%s of %s", kind, tag);
}

static enum mlo_status append(struct victim *v, struct mlo_upload *upload, const char *bytes)
{
    struct mlo_blob_piece *piece;
    uint64_t from = upload->session.size_bytes;
    enum mlo_status status = mlo_upload_piece_open(v->conn, v->blobs, upload, &piece, &v->err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_blob_piece_write(piece, bytes, strlen(bytes), &v->err));
    MLO_TRY(mlo_blob_piece_commit(piece, &v->err));
    MLO_TRY(mlo_upload_keep(v->conn, upload, from, &v->err));
out:
    mlo_blob_piece_free(piece);
    return status;
}

/* 'p': the upload in pieces; 'w': the other one; 'v': the version. */
static enum mlo_status uploads(struct victim *v)
{
    struct mlo_upload upload;
    struct mlo_version_info version;
    char one[64], two[64];
    int64_t model;
    content(v->tag, "pieces", one);
    content(v->tag, "whole", two);
    struct mlo_manifest_blob files[] = {{.role = "model", .name = "m.onnx", .digest = upkeep_digest(one)},
                                        {.role = "data", .name = "weights"}};
    enum mlo_status status;
    MLO_TRY(mlo_upload_begin(v->conn, v->blobs, &root, v->project, &upload, &v->err));
    MLO_TRY(append(v, &upload, "pieces of "));
    MLO_TRY(append(v, &upload, v->tag));
    MLO_TRY(mlo_upload_finish(v->conn, v->blobs, &root, &upload, &files[0].digest, &v->err));
    acknowledge(v, 'p');
    MLO_TRY(mlo_blob_put_bytes(v->blobs, two, strlen(two), &files[1].digest, &v->err));
    MLO_TRY(
        mlo_blob_record_stored(v->conn, v->blobs, &root, v->project, &files[1].digest, strlen(two), &v->err));
    acknowledge(v, 'w');
    MLO_TRY(mlo_model_ensure(v->conn, &root, v->project, v->tag, &model, &v->err));
    MLO_TRY(mlo_version_create(v->conn, &root, model, "", files, 2, &version, &v->err));
    acknowledge(v, 'v');
out:
    return status;
}

static enum mlo_status generation(struct mlo_db_conn *conn, int64_t model, int64_t *out, int64_t *version,
                                  struct mlo_error *err)
{
    json_t *stage = NULL;
    enum mlo_status status = mlo_stage_get(conn, model, "production", &stage, err);
    *out = mlo_json_i64(stage, "generation", 0);
    *version = mlo_json_i64(json_object_get(stage, "release"), "version", 0);
    json_decref(stage);
    return status;
}

/* 'm': each move, with the ledger written after it. */
static enum mlo_status promotions(struct victim *v)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < 2; i++) {
        struct mlo_release_choice choice = {"any", "source"};
        struct mlo_move move;
        int64_t at, version;
        MLO_TRY(generation(v->conn, v->model, &at, &version, &v->err));
        const struct mlo_promotion p = {.model_id = v->model,
                                        .version = version == 1 ? 2 : 1,
                                        .choices = &choice,
                                        .choice_count = 1,
                                        .stage = "production",
                                        .reason = v->tag,
                                        .if_match = &at};
        MLO_TRY(mlo_stage_promote(v->conn, &root, &p, &move, &v->err));
        acknowledge(v, 'm');
        MLO_TRY(mlo_ledger_sync(v->ledger, v->conn, v->project, &v->err));
    }
out:
    return status;
}

/* 'd': the version is deleted; then its bytes, those of nobody, and an orphan go. */
static enum mlo_status collecting(struct victim *v)
{
    const struct mlo_deletion_request request = {
        .project_id = v->project, .model = v->tag, .version = 1, .reason = "fault"};
    const struct mlo_gc_options gc = {.blobs = v->blobs};
    const struct mlo_fsck_options fsck = {.blobs = v->blobs, .repair = true};
    struct mlo_gc_result result;
    json_t *found = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_delete(v->conn, &root, &request, NULL, NULL, &v->err));
    acknowledge(v, 'd');
    MLO_TRY(mlo_gc_run(v->conn, &root, &gc, &result, NULL, &v->err));
    MLO_TRY(mlo_fsck_run(v->conn, &root, &fsck, NULL, &found, &v->err));
out:
    json_decref(found);
    return status;
}

/* --- what holds after it ------------------------------------------------------------------------------- */

static bool version_there(struct campaign *c, const char *model)
{
    struct pg_fixture *f = c->u.f;
    struct mlo_version_info v;
    int64_t id;
    return mlo_model_find(f->conn, c->u.project, model, &id, &f->err) == MLO_OK &&
           mlo_version_find(f->conn, id, 1, &v, &f->err) == MLO_OK &&
           mlo_blob_linked(f->conn, c->u.project, &v.artifact, NULL, &f->err) == MLO_OK;
}

static bool recorded(struct campaign *c, const char *tag, const char *kind)
{
    char text[64];
    content(tag, kind, text);
    struct mlo_digest d = upkeep_digest(text);
    return mlo_blob_linked(c->u.f->conn, c->u.project, &d, NULL, &c->u.f->err) == MLO_OK &&
           mlo_blob_exists(c->u.blobs, &d);
}

static void before_uploads(struct campaign *c, const char *tag)
{
    MLO_UNUSED(c);
    MLO_UNUSED(tag);
}

static void after_uploads(struct campaign *c, const char *tag, const char *acks)
{
    upkeep_clean(&c->u); /* no row without its bytes */
    assert_true(!strchr(acks, 'p') || recorded(c, tag, "pieces"));
    assert_true(!strchr(acks, 'w') || recorded(c, tag, "whole"));
    assert_true(!strchr(acks, 'v') || version_there(c, tag));
}

static int64_t moves_before;

static void before_promotions(struct campaign *c, const char *tag)
{
    int64_t version;
    MLO_UNUSED(tag);
    assert_mlo_ok(generation(c->u.f->conn, c->model, &moves_before, &version, &c->u.f->err), &c->u.f->err);
}

/* Each acknowledged move, and at most one more whose answer was lost. */
static void after_promotions(struct campaign *c, const char *tag, const char *acks)
{
    int64_t now, version, acknowledged = (int64_t)strlen(acks);
    MLO_UNUSED(tag);
    upkeep_clean(&c->u);
    assert_mlo_ok(generation(c->u.f->conn, c->model, &now, &version, &c->u.f->err), &c->u.f->err);
    assert_in_range(now - moves_before, acknowledged, acknowledged + 1);
}

static void before_collecting(struct campaign *c, const char *tag)
{
    char text[64];
    content(tag, "model", text);
    upkeep_version(&c->u, tag, text);
    content(tag, "nobody's", text);
    upkeep_put(&c->u, text);
    content(tag, "orphan", text);
    assert_mlo_ok(mlo_blob_put_bytes(c->u.blobs, text, strlen(text), NULL, &c->u.f->err), &c->u.f->err);
}

/* Deleted, or not; the next run ends what this one began. */
static void after_collecting(struct campaign *c, const char *tag, const char *acks)
{
    char text[64];
    bool there = version_there(c, tag);
    upkeep_clean(&c->u);
    content(tag, "model", text);
    assert_false(there && strchr(acks, 'd'));
    assert_true(!there || upkeep_has(&c->u, text));
    upkeep_gc(&c->u, 0);
    json_decref(upkeep_fsck(&c->u, true, 0));
    assert_int_equal(upkeep_has(&c->u, text), there);
    content(tag, "nobody's", text);
    assert_false(upkeep_has(&c->u, text));
    content(tag, "orphan", text);
    assert_false(upkeep_has(&c->u, text));
}

/* --- campaigns ---------------------------------------------------------------------------------------- */

/* What promotions move between. */
static void begin_staged(struct campaign *c)
{
    c->model = upkeep_version(&c->u, "staged", "staged one").model_id;
    upkeep_version(&c->u, "staged", "staged two");
}

static void test_kill__at_each_step_of_uploads(void **state)
{
    const struct plan plan = {"uploads", uploads, begin_staged, before_uploads, after_uploads, "pwv", NULL};
    campaign(state, &plan, FAULT_KILL);
}

static void test_kill__at_each_step_of_promotions_and_their_ledger(void **state)
{
    const struct plan plan = {"promotions",     promotions, begin_staged, before_promotions,
                              after_promotions, "mm",       NULL};
    campaign(state, &plan, FAULT_KILL);
}

static void test_kill__at_each_step_of_garbage_collection(void **state)
{
    const struct plan plan = {"gc", collecting, begin_staged, before_collecting, after_collecting, "d", NULL};
    campaign(state, &plan, FAULT_KILL);
}

static void test_cut__postgresql_at_each_step_of_garbage_collection(void **state)
{
    const struct plan plan = {"gc-cut",         collecting, begin_staged, before_collecting,
                              after_collecting, "d",        NULL};
    campaign(state, &plan, FAULT_CUT);
}

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(test_kill__at_each_step_of_uploads),
        T(test_kill__at_each_step_of_promotions_and_their_ledger),
        T(test_kill__at_each_step_of_garbage_collection),
        T(test_cut__postgresql_at_each_step_of_garbage_collection),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
