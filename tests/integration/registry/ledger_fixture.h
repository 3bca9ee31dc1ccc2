/* A project with models and moves, and stock git to look at what becomes of them. */
#ifndef MLO_TESTS_LEDGER_FIXTURE_H
#define MLO_TESTS_LEDGER_FIXTURE_H

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

struct shop {
    struct pg_fixture *f;
    int64_t project_id, model_id, version, generation;
    char *dir; /* for repositories; removed at the end */
    struct mlo_ledger *ledger;
};

static inline struct mlo_ledger *shop_ledger(struct shop *s, struct mlo_db *db, const char *mirror,
                                             mlo_ledger_step_fn *on_step, void *arg)
{
    struct mlo_ledger *ledger;
    const struct mlo_ledger_options options = {
        .db = db, .dir = s->dir, .mirror = mirror, .on_step = on_step, .step_arg = arg};
    assert_mlo_ok(mlo_ledger_open(&options, &ledger, &s->f->err), &s->f->err);
    return ledger;
}

static inline struct shop shop_open(struct pg_fixture *f)
{
    struct shop s = {.f = f};
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "shop", &s.project_id, &f->err), &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, s.project_id, "cnn", &s.model_id, &f->err), &f->err);
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-ledger-", &s.dir, &f->err), &f->err);
    s.ledger = shop_ledger(&s, f->server, NULL, NULL, NULL);
    return s;
}

static inline void shop_close(struct shop *s)
{
    mlo_ledger_close(s->ledger);
    mlo_fs_remove_tree(s->dir);
    free(s->dir);
}

/* A new version of shop/cnn, promoted to production. */
static inline void shop_promote(struct shop *s, const char *reason)
{
    struct pg_fixture *f = s->f;
    char text[32];
    struct mlo_version_info v;
    struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx"};
    struct mlo_release_choice choice = {"any", "source"};
    struct mlo_move move;
    snprintf(text, sizeof text, "version %lld", (long long)++s->version);
    mlo_digest_of(text, strlen(text), &b.digest);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, s->project_id, &b.digest, strlen(text), &f->err), &f->err);
    assert_mlo_ok(mlo_version_create(f->conn, &root, s->model_id, "", &b, 1, &v, &f->err), &f->err);
    const struct mlo_promotion p = {.model_id = s->model_id,
                                    .version = v.number,
                                    .choices = &choice,
                                    .choice_count = 1,
                                    .stage = "production",
                                    .reason = reason,
                                    .if_match = &s->generation};
    assert_mlo_ok(mlo_stage_promote(f->conn, &root, &p, &move, &f->err), &f->err);
    s->generation = move.generation;
}

/* Recorded changes, as many as the ledger will have commits. */
static inline void ledger_events(struct pg_fixture *f, int64_t project_id, int first, int count)
{
    const struct mlo_audit_event event = {.action = "policy.set", .object = "shop"};
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    for (int i = first; i < first + count; i++) {
        char path[40], text[80];
        int64_t seq;
        snprintf(path, sizeof path, "policy/m%d.yaml", i % 7);
        snprintf(text, sizeof text, "# the %d. change\nstages: {}\n", i);
        const struct mlo_ledger_file file = {.path = path, .text = text, .size = strlen(text)};
        assert_mlo_ok(mlo_audit_append(f->conn, project_id, &root, &event, &seq, &f->err), &f->err);
        assert_mlo_ok(mlo_ledger_append(f->conn, project_id, seq, &file, 1, &f->err), &f->err);
    }
    assert_mlo_ok(mlo_db_end(f->conn, MLO_OK, &f->err), &f->err);
}

static inline void shop_sync(struct shop *s)
{
    assert_mlo_ok(mlo_ledger_sync(s->ledger, s->f->conn, s->project_id, &s->f->err), &s->f->err);
}

/* Runs a shell command in `dir` ("git …"); its exit code, stdout and stderr in `out`. */
static inline int shell(const char *dir, struct mlo_buf *out, const char *fmt, ...) MLO_PRINTF(3, 4);
static inline int shell(const char *dir, struct mlo_buf *out, const char *fmt, ...)
{
    struct mlo_buf command = MLO_BUF_INIT;
    struct mlo_error err = {0};
    int code = -1;
    va_list args;
    mlo_buf_puts(&command, "exec 2>&1; ");
    va_start(args, fmt);
    mlo_buf_vprintf(&command, fmt, args);
    va_end(args);
    const char *const argv[] = {"/bin/sh", "-c", mlo_buf_str(&command), NULL};
    const char *const env[] = {"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C",
                               "GIT_TERMINAL_PROMPT=0", NULL};
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    options.argv = argv;
    options.env = env;
    options.cwd = dir;
    mlo_buf_reset(out);
    assert_mlo_ok(mlo_process_run(&options, 300000, 1 << 22, out, &code, &err), &err);
    mlo_buf_clear(&command);
    return code;
}

#define assert_shell(dir, out, ...)                                                                          \
    do {                                                                                                     \
        int code_ = shell(dir, out, __VA_ARGS__);                                                            \
        if (code_ != 0)                                                                                      \
            fail_msg("exit code %d: %s", code_, mlo_buf_str(out));                                           \
    } while (0)

/* The ids of main's commits, newest first, one a line. */
static inline void shop_ids(struct shop *s, struct mlo_buf *out)
{
    char *path = mlo_ledger_repository(s->ledger, "shop");
    assert_shell(path, out, "git rev-list main");
    free(path);
}

/* What stock git says of every commit, by the allowed_signers of the last one. */
static inline void shop_check_with_git(struct shop *s, int commits)
{
    struct mlo_buf out = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s->ledger, "shop");
    assert_shell(path, &out, "git fsck --strict --full && git rev-list --count main");
    char count[16];
    snprintf(count, sizeof count, "%d\n", commits);
    if (!mlo_str_ends(mlo_buf_str(&out), count))
        fail_msg("git counts: %s, not %s", mlo_buf_str(&out), count);
    assert_shell(path, &out,
                 "git show main:allowed_signers > %s/allowed && for c in $(git rev-list main); do git -c "
                 "gpg.ssh.allowedSignersFile=%s/allowed verify-commit $c || exit 1; done",
                 s->dir, s->dir);
    mlo_buf_clear(&out);
    free(path);
}

#endif
