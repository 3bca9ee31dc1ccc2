/* SIGKILL at every step that writes, of uploads, promotions with their ledger, deletion with garbage
 * collection and repair; and PostgreSQL's connections cut at every step of the last. A step is a call that
 * changes a file or talks to PostgreSQL: the linker puts kill_point() before and behind each of them (--wrap,
 * tests/CMakeLists.txt), in this program alone.
 *
 * After each: what was acknowledged is there, no row is without its bytes, the audit chains and the ledger
 * verify, and the next one goes on. A run takes some of the steps, from a random first one that is printed
 * (MLOPT_FAULT_SEED sets it); MLOPT_FAULT_ALL=1 takes all. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/upkeep_fixture.h"

enum { STEPS = 8 };

/* --- the points --------------------------------------------------------------------------------------------
 */

enum fault { FAULT_NONE, FAULT_KILL, FAULT_CUT };

static enum fault fault; /* of this process: a child's only */
static long fault_at, fault_count;
static const char *fault_conninfo; /* of the superuser */
static bool fault_busy;

PGresult *__real_PQexec(PGconn *pg, const char *text);
PGresult *__real_PQexecPrepared(PGconn *pg, const char *name, int count, const char *const *values,
                                const int *lengths, const int *formats, int result_format);
int __real_PQpipelineSync(PGconn *pg);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_ftruncate(int fd, off_t size);
ssize_t __real_write(int fd, const void *bytes, size_t size);

static void cut(void)
{
    PGconn *pg = PQconnectdb(fault_conninfo);
    PQclear(__real_PQexec(pg, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                              "WHERE application_name = 'victim'"));
    PQfinish(pg);
}

static void kill_point(void)
{
    if (fault == FAULT_NONE || fault_busy || fault_count++ != fault_at)
        return;
    fault_busy = true;
    if (fault == FAULT_KILL)
        kill(getpid(), SIGKILL);
    else
        cut();
    fault_busy = false;
}

/* clang-format off */
#define WRAP(type, name, parameters, arguments)                                                              \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters                                                                            \
    {                                                                                                        \
        kill_point();                                                                                        \
        type result = __real_##name arguments;                                                               \
        int e = errno;                                                                                       \
        kill_point();                                                                                        \
        errno = e;                                                                                           \
        return result;                                                                                       \
    }
WRAP(PGresult *, PQexec, (PGconn *pg, const char *text), (pg, text))
WRAP(PGresult *, PQexecPrepared, (PGconn *pg, const char *name, int count, const char *const *values,
     const int *lengths, const int *formats, int result_format),
     (pg, name, count, values, lengths, formats, result_format))
WRAP(int, PQpipelineSync, (PGconn *pg), (pg))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(ssize_t, write, (int fd, const void *bytes, size_t size), (fd, bytes, size))
/* clang-format on */

/* --- the victim: a process of its own ----------------------------------------------------------------------
 */

struct victim {
    struct mlo_db_conn *conn;
    struct mlo_blob_store *blobs;
    struct mlo_ledger *ledger;
    int64_t project, model; /* model: "staged" */
    const char *tag;        /* of this run */
    int acks;               /* a pipe */
    struct mlo_error err;
};

/* No point of its own: what is told is told. */
static void acknowledge(const struct victim *v, char what)
{
    if (syscall(SYS_write, v->acks, &what, 1) != 1)
        _exit(3);
}

typedef enum mlo_status scenario_fn(struct victim *v);

static void content(const char *tag, const char *kind, char out[64])
{
    snprintf(out, 64, "%s of %s", kind, tag);
}

static enum mlo_status append(struct victim *v, struct mlo_upload *upload, const char *bytes)
{
    struct mlo_blob_piece *piece;
    uint64_t from = upload->session.size_bytes;
    enum mlo_status status = mlo_blob_piece_open(v->blobs, &upload->session, &piece, &v->err);
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

/* --- running one -------------------------------------------------------------------------------------------
 */

struct campaign {
    struct upkeep u;
    char *ledger_dir, *url, *conninfo, *admin;
    struct mlo_ledger *ledger;
    int64_t model;
};

/* In the child: never comes back. Its own connections: those of the parent are not used. */
static void be_victim(struct campaign *c, scenario_fn *scenario, const char *tag, enum fault kind, long at,
                      int acks, int counts)
{
    struct victim v = {.project = c->u.project, .model = c->model, .tag = tag, .acks = acks};
    struct mlo_db *db;
    const struct mlo_db_options options = {
        .conninfo = c->conninfo, .application = "victim", .max_connections = 2};
    if (mlo_db_open(&options, &db, &v.err) != MLO_OK || mlo_db_acquire(db, &v.conn, &v.err) != MLO_OK ||
        mlo_blob_store_open(c->url, &v.blobs, &v.err) != MLO_OK)
        _exit(2);
    const struct mlo_ledger_options ledger = {.db = db, .dir = c->ledger_dir};
    if (mlo_ledger_open(&ledger, &v.ledger, &v.err) != MLO_OK)
        _exit(2);
    fault_conninfo = c->admin;
    fault_at = at;
    fault = kind;
    enum mlo_status status = scenario(&v);
    fault = FAULT_NONE;
    if (syscall(SYS_write, counts, &fault_count, sizeof fault_count) != sizeof fault_count)
        _exit(2);
    if (status != MLO_OK && kind != FAULT_CUT)
        fprintf(stderr, "victim: %s\n", v.err.message);
    _exit(status == MLO_OK ? 0 : 1);
}

/* What it acknowledged; *steps is how many points it passed, 0 when it was killed. */
static void run_victim(struct campaign *c, scenario_fn *scenario, const char *tag, enum fault kind, long at,
                       char acks[8], long *steps)
{
    int pipes[2][2], wait_status;
    assert_true(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        be_victim(c, scenario, tag, kind, at, pipes[0][1], pipes[1][1]);
    close(pipes[0][1]);
    close(pipes[1][1]);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    memset(acks, 0, 8);
    assert_true(read(pipes[0][0], acks, 7) >= 0);
    *steps = 0;
    if (read(pipes[1][0], steps, sizeof *steps) < 0)
        *steps = 0;
    close(pipes[0][0]);
    close(pipes[1][0]);
    if (WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) != SIGKILL || kind != FAULT_KILL
                                 : WEXITSTATUS(wait_status) > (kind == FAULT_CUT))
        fail_msg("%s, fault at %ld: the process ended with %x", tag, at, (unsigned)wait_status);
}

/* --- what holds after each ---------------------------------------------------------------------------------
 */

static void look_at_histories(struct campaign *c)
{
    struct pg_fixture *f = c->u.f;
    const int64_t chains[] = {0, c->u.project};
    struct mlo_ledger_result ledger;
    for (size_t i = 0; i < MLO_COUNT(chains); i++) {
        struct mlo_audit_result audit;
        assert_mlo_ok(mlo_audit_verify(f->conn, chains[i], NULL, &audit, &f->err), &f->err);
        if (!audit.intact)
            fail_msg("chain %lld: %s", (long long)chains[i], audit.problem);
    }
    assert_mlo_ok(mlo_ledger_sync(c->ledger, f->conn, c->u.project, &f->err), &f->err);
    assert_mlo_ok(mlo_ledger_verify(f->conn, c->u.project, &ledger, &f->err), &f->err);
    if (!ledger.intact)
        fail_msg("ledger: %s", ledger.problem);
}

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

/* --- campaigns
 * ---------------------------------------------------------------------------------------------- */

struct plan {
    const char *name;
    scenario_fn *scenario;
    void (*before)(struct campaign *c, const char *tag);
    void (*after)(struct campaign *c, const char *tag, const char *acks);
    const char *all_acks;
};

static void open_campaign(struct campaign *c, struct pg_fixture *f)
{
    struct mlo_buf url = MLO_BUF_INIT;
    memset(c, 0, sizeof *c);
    upkeep_open(&c->u, f);
    mlo_buf_printf(&url, "file:%s", c->u.root);
    c->url = mlo_buf_take(&url);
    c->ledger_dir = mlo_fs_join(c->u.dir, "ledger", NULL);
    c->conninfo = mlo_embedded_conninfo(f->pg, MLO_ROLE_SERVER, f->database);
    c->admin = mlo_embedded_conninfo(f->pg, NULL, f->database);
    const struct mlo_ledger_options ledger = {.db = f->server, .dir = c->ledger_dir};
    assert_mlo_ok(mlo_ledger_open(&ledger, &c->ledger, &f->err), &f->err);
    c->model = upkeep_version(&c->u, "staged", "staged one").model_id;
    upkeep_version(&c->u, "staged", "staged two");
}

static void close_campaign(struct campaign *c)
{
    mlo_ledger_close(c->ledger);
    free(c->url);
    free(c->ledger_dir);
    free(c->conninfo);
    free(c->admin);
    upkeep_close(&c->u);
}

static void one(struct campaign *c, const struct plan *plan, enum fault kind, long at, long *steps)
{
    char tag[40], acks[8];
    snprintf(tag, sizeof tag, "%s-%ld", plan->name, at);
    plan->before(c, tag);
    run_victim(c, plan->scenario, tag, kind, at, acks, steps);
    if (*steps && kind != FAULT_CUT)
        assert_string_equal(acks, plan->all_acks);
    upkeep_clean(&c->u); /* no row without its bytes */
    plan->after(c, tag, acks);
    look_at_histories(c);
}

static void campaign(struct pg_fixture *f, const struct plan *plan, enum fault kind)
{
    struct campaign c;
    const char *all = getenv("MLOPT_FAULT_ALL"), *seed_text = getenv("MLOPT_FAULT_SEED");
    int64_t seed = mlo_clock_utc_us() / 1000;
    long steps, ignored;
    open_campaign(&c, f);
    one(&c, plan, kind, 1000000, &steps); /* passes all points: how many are there? */
    assert_true(steps > 20);
    if (seed_text)
        mlo_str_to_i64(seed_text, &seed);
    double stride = all ? 1 : (double)steps / STEPS;
    double first = all ? 0 : (double)(seed % 1000) / 1000 * stride;
    print_message("%s: %ld steps, every %.1f from %.1f (MLOPT_FAULT_SEED=%lld)\n", plan->name, steps,
                  stride > 1 ? stride : 1, first, (long long)seed);
    for (double at = first; at<(double)steps; at += stride> 1 ? stride : 1)
        one(&c, plan, kind, (long)at, &ignored);
    close_campaign(&c);
}

static void test_kill__at_each_step_of_uploads(void **state)
{
    const struct plan plan = {"uploads", uploads, before_uploads, after_uploads, "pwv"};
    campaign(*state, &plan, FAULT_KILL);
}

static void test_kill__at_each_step_of_promotions_and_their_ledger(void **state)
{
    const struct plan plan = {"promotions", promotions, before_promotions, after_promotions, "mm"};
    campaign(*state, &plan, FAULT_KILL);
}

static void test_kill__at_each_step_of_garbage_collection(void **state)
{
    const struct plan plan = {"gc", collecting, before_collecting, after_collecting, "d"};
    campaign(*state, &plan, FAULT_KILL);
}

static void test_cut__postgresql_at_each_step_of_garbage_collection(void **state)
{
    const struct plan plan = {"gc-cut", collecting, before_collecting, after_collecting, "d"};
    campaign(*state, &plan, FAULT_CUT);
}

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_kill__at_each_step_of_uploads),
        T(test_kill__at_each_step_of_promotions_and_their_ledger),
        T(test_kill__at_each_step_of_garbage_collection),
        T(test_cut__postgresql_at_each_step_of_garbage_collection),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
