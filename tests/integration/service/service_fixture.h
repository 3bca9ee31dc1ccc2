/* Tests of the service: a project with a model version and datasets, and a micro step.
 *
 * The test program is its own `exe`: called as `PROGRAM step-exec DIR` it speaks the protocol of the real
 * steps, and does what the model file says in lines such as "optimize.sleep_ms=300". Called as `PROGRAM
 * worker CONNINFO DIR LEASE_MS` it is a worker process that can be killed. */
#ifndef MLO_TESTS_SERVICE_FIXTURE_H
#define MLO_TESTS_SERVICE_FIXTURE_H

#include "tests/pg_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engines/plans_impl.h"
#include "pipeline/service/service_impl.h"
#include "pipeline/steps/search.h"

/* For what takes a moment where the machine has nothing else to do. No test here compares times: a step that
 * must not end by itself is held, and a lease that must run out is ended in the database. */
#define PATIENCE_S 300
#define LEASE_MS 600000

#ifdef MLOPT_SANITIZED
#define SANITIZED true
#else
#define SANITIZED false
#endif

#define RECIPE_TINY                                                                                          \
    "name: tiny\ntarget: any\ndata: {calibrate: p/cal, evaluate: p/test}\nsteps:\n"                          \
    "  - optimize: {}\n  - quantize: {}\n  - evaluate: {metrics: [top1], compare_to: source}\n"              \
    "  - benchmark: {batch: [1], threads: 1, compare_to: source}\nexpect: [\"top1 >= source - 0.5pt\", "     \
    "\"size <= 2 * source\"]\n"
#define RECIPE_DERIVE "name: derived\ntarget: any\nsteps:\n  - optimize: {}\n"
#define RECIPE_COMPILE "name: compiled\ntarget: any\nsteps:\n  - compile: {batch: [1]}\n"
#define RECIPE_REPORT                                                                                        \
    "name: told\ntarget: any\ndata: {calibrate: p/cal, evaluate: p/test}\nsteps:\n"                          \
    "  - optimize: {}\n  - quantize: {scheme: uint8}\n  - report: {}\n"
#define RECIPE_CHOOSE                                                                                        \
    "name: chosen\ntarget: any\ndata: {calibrate: p/cal, select: p/sel}\nsteps:\n"                           \
    "  - optimize: {}\n  - quantize: {accuracy_drop: 0.5pt}\n"
#define RECIPE_OBSERVE                                                                                       \
    "name: observed\ntarget: any\ndata: {evaluate: p/test}\nsteps:\n  - evaluate: {metrics: [top1]}\n"

struct service_fixture {
    struct pg_fixture *pg;
    struct mlo_db *worker; /* the worker's role, room for many threads */
    struct mlo_blob_store *blobs;
    char *dir;   /* blobs, work, state */
    char *state; /* where the micro step logs */
    char *work, *blob_url;
    int64_t project, version;
    struct mlo_error err;
};

static const struct mlo_actor SYSTEM = MLO_ACTOR_SYSTEM;

/* By the role that runs them. */
static inline void assert_prepares(struct service_fixture *f, const struct mlo_sql *table, size_t count)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_prepare_all(conn, table, count, &f->err), &f->err);
    mlo_db_release(conn);
}

/* --- the micro step ------------------------------------------------------------------------------------ */

/* The value of "<step>.<key>=" in the model's text, or NULL; yours. */
static inline char *micro_value(const char *model, const char *step, const char *key)
{
    char name[96];
    snprintf(name, sizeof name, "\n%s.%s=", step, key);
    const char *at = strstr(model, name);
    return at ? strndup(at + strlen(name), strcspn(at + strlen(name), "\n")) : NULL;
}

static inline int64_t micro_number(const char *model, const char *step, const char *key, int64_t fallback)
{
    int64_t n = fallback;
    char *text = micro_value(model, step, key);
    if (text)
        mlo_str_to_i64(text, &n);
    free(text);
    return n;
}

static inline void micro_log(const char *model, const char *step, const char *what)
{
    char line[160];
    char *state = micro_value(model, "all", "state");
    char *path = state ? mlo_fs_join(state, "log", NULL) : NULL;
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    int n = snprintf(line, sizeof line, "%s %s %llu\n", what, step, (unsigned long long)mlo_clock_ns());
    if (fd >= 0) {
        if (!mlo_fs_write_full(fd, line, (size_t)n))
            abort();
        close(fd);
    }
    free(path);
    free(state);
}

/* How often this step was started, from the log. */
static inline int micro_count(const char *state, const char *prefix)
{
    struct mlo_buf text = MLO_BUF_INIT;
    char *path = mlo_fs_join(state, "log", NULL), needle[96];
    int count = 0;
    if (mlo_fs_exists(path) && mlo_fs_read(path, 1 << 24, &text, NULL) == MLO_OK) {
        snprintf(needle, sizeof needle, "%s ", prefix);
        for (const char *at = mlo_buf_str(&text); (at = strstr(at, needle)); at += strlen(needle))
            count += at == mlo_buf_str(&text) || at[-1] == '\n';
    }
    mlo_buf_clear(&text);
    free(path);
    return count;
}

static inline json_t *micro_observation(const char *subject, const char *metric, double value, bool ratio)
{
    json_t *seen = json_pack("{s:s, s:s, s:{s:i, s:i}, s:s, s:f, s:f, s:f, s:i, s:s, s:s, s:s, s:{}, s:s?}",
                             "subject", subject, "metric", metric, "params", "batch", 1, "threads", 1, "unit",
                             ratio ? "us" : "fraction", "value", value, "low", value * 0.99, "high",
                             value * 1.01, "n", 100, "protocol", "micro-1", "engine", "micro",
                             "machine_class", "test", "machine", "data_role", ratio ? NULL : "evaluate");
    if (strcmp(subject, "variant") == 0)
        json_object_set_new(seen, "against",
                            ratio ? json_pack("{s:s, s:{s:f, s:f, s:f}}", "subject", "source", "ratio",
                                              "value", 0.5, "low", 0.4, "high", 0.6)
                                  : json_pack("{s:s, s:{s:f, s:f, s:f}}", "subject", "source", "difference",
                                              "value", value - 0.9, "low", value - 0.9, "high", value - 0.9));
    return seen;
}

/* By its descriptor: a job may not change a file's length by its path. */
static inline bool service_grow(const char *path, off_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool grown = fd >= 0 && ftruncate(fd, size) == 0;
    if (fd >= 0)
        close(fd);
    return grown;
}

/* What "<step>.plan=" asks for. */
enum { PLAN_RIGHT = 1, PLAN_OF_ANOTHER, PLAN_FORGED, PLAN_TWICE, PLAN_HUGE };

/* A plan of the model: as it should be, or wrong in one way. */
static inline json_t *micro_plan(const char *dir, const char *model, int64_t kind)
{
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE], said[128];
    mlo_digest_of(model, strlen(model), &digest);
    mlo_digest_text(&digest, text);
    int n = snprintf(said, sizeof said, "{\"model\":\"%s\"%s}", kind == PLAN_OF_ANOTHER ? "mine" : text,
                     kind == PLAN_FORGED ? ",\"batch\":7" : "");
    struct plan_head head = {.magic = PLAN_MAGIC,
                             .format = MLO_PLAN_FORMAT,
                             .fingerprint_bytes = (uint32_t)n,
                             .head_bytes = PLAN_HEAD_ALIGN,
                             .content_bytes = kind == PLAN_HUGE ? (uint64_t)9 << 30 : PLAN_HEAD_ALIGN + 64};
    char bytes[PLAN_HEAD_ALIGN + 64] = {0}, *path = mlo_fs_join(dir, "micro.plan", NULL);
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, said, (size_t)n);
    if (mlo_fs_write_atomic(path, bytes, sizeof bytes, NULL) != MLO_OK ||
        !service_grow(path, (off_t)head.content_bytes)) /* sparse */
        abort();
    json_t *row = json_pack("{s:s, s:s, s:{s:s}}", "path", path, "machine_class", "test", "fingerprint",
                            "model", kind == PLAN_OF_ANOTHER ? "mine" : text);
    json_t *out = kind == PLAN_TWICE ? json_pack("[O, O]", row, row) : json_pack("[O]", row);
    json_decref(row);
    free(path);
    return out;
}

/* "<step>.decision=TEXT": what it chose; "<step>.unfinished=1": and could have gone on. */
static inline void micro_decision(const char *dir, const char *step, const char *model, json_t *out)
{
    char *decision = micro_value(model, step, "decision"), *path = mlo_fs_join(dir, "decision.json", NULL);
    json_t *report = json_object_get(out, "report");
    json_object_set_new(report, "decision", json_string("what a child says by itself"));
    if (decision) {
        bool unfinished = micro_number(model, step, "unfinished", 0);
        if (mlo_fs_write_atomic(path, decision, strlen(decision), NULL) != MLO_OK)
            abort();
        json_object_set_new(out, "decision", json_string(path));
        json_object_set_new(report, "mixed_precision", json_pack("{s:b}", "complete", !unfinished));
    }
    free(decision);
    free(path);
}

/* What the real step chooses of what it is told. */
static inline json_t *micro_search(const char *dir, const json_t *job)
{
    struct mlo_error err = {0};
    json_t *decision = NULL;
    char *path = mlo_fs_join(dir, "decision.json", NULL);
    if (mlo_search_decide(json_object_get(job, "options"), json_object_get(job, "run"), &decision, &err) !=
            MLO_OK ||
        mlo_json_save_file(decision, path, &err) != MLO_OK) {
        free(path);
        return json_pack("{s:s, s:s, s:s, s:s}", "status", "invalid", "message", err.message, "where", "",
                         "hint", "");
    }
    json_t *out = json_pack("{s:s, s:n, s:{s:o}, s:[], s:s}", "status", "ok", "artifact", "report", "search",
                            decision, "observations", "decision", path);
    free(path);
    return out;
}

static inline bool micro_derives(const char *step)
{
    const struct mlo_step *row = mlo_step_find(step);
    return row && row->kind == MLO_STEP_DERIVE;
}

static inline json_t *micro_result(const char *dir, const char *step, const char *model)
{
    char *fail = micro_value(model, step, "fail");
    if (fail) {
        json_t *out = json_pack("{s:s, s:s, s:s, s:s}", "status", fail, "message", "told to fail", "where",
                                "line 1", "hint", "tell it something else");
        free(fail);
        return out;
    }
    int64_t kind = micro_number(model, step, "plan", 0);
    if (strcmp(step, "compile") == 0)
        return json_pack("{s:s, s:n, s:{}, s:[], s:o}", "status", "ok", "artifact", "report", "observations",
                         "plans", micro_plan(dir, model, kind));
    if (micro_derives(step)) {
        struct mlo_buf text = MLO_BUF_INIT;
        char *elsewhere = micro_value(model, step, "artifact"), *path = mlo_fs_join(dir, "out.onnx", NULL);
        mlo_buf_printf(&text, "%s# %s\n", model, step);
        if (micro_number(model, step, "drift", 0)) { /* other bytes each time */
            char *log = micro_value(model, "all", "state"), begun[32];
            snprintf(begun, sizeof begun, "start %s", step);
            mlo_buf_printf(&text, "# time %d\n", micro_count(log, begun));
            free(log);
        }
        if (mlo_fs_write_atomic(path, text.data, text.len, NULL) != MLO_OK)
            abort();
        json_t *out = json_pack("{s:s, s:s, s:{s:s}, s:[]}", "status", "ok", "artifact",
                                elsewhere ? elsewhere : path, "report", "did", step, "observations");
        if (kind)
            json_object_set_new(out, "plans", micro_plan(dir, model, kind));
        micro_decision(dir, step, model, out);
        mlo_buf_clear(&text);
        free(elsewhere);
        free(path);
        return out;
    }
    if (strcmp(step, "report") == 0 || micro_number(model, step, "document", 0)) { /* what it was told */
        char *told = mlo_fs_join(dir, "job.json", NULL), *path = mlo_fs_join(dir, "report.json", NULL);
        struct mlo_error err = {0};
        if (mlo_fs_copy(told, path, &err) != MLO_OK ||
            (micro_number(model, step, "huge", 0) && !service_grow(path, (off_t)33 << 20)))
            abort();
        json_t *out = json_pack("{s:s, s:n, s:{}, s:[], s:s}", "status", "ok", "artifact", "report",
                                "observations", "document", path);
        free(told);
        free(path);
        return out;
    }
    bool ratio = strcmp(step, "benchmark") == 0;
    double drop = (double)micro_number(model, step, "drop_percent", 0) / 100;
    if (strstr(model, "\n# prune\n")) /* "<step>.pruned_percent=": what pruning costs more */
        drop += (double)micro_number(model, step, "pruned_percent", 0) / 100;
    json_t *out =
        json_pack("{s:s, s:n, s:{}, s:[o, o]}", "status", "ok", "artifact", "report", "observations",
                  micro_observation("source", ratio ? "latency.p50" : "top1", 0.9, ratio),
                  micro_observation("variant", ratio ? "latency.p50" : "top1", 0.9 - drop, ratio));
    bool trial = strcmp(step, "trial") == 0;
    if (trial || strcmp(step, "screen") == 0)
        for (size_t i = 0; i < 2; i++) {
            json_t *seen = json_array_get(json_object_get(out, "observations"), i);
            json_object_set_new(seen, "data_role", json_string("select"));
            if (trial) /* of a part of the data */
                json_object_set_new(json_object_get(seen, "params"), "samples", json_integer(100));
        }
    if (trial) /* which times as well */
        json_array_append_new(json_object_get(out, "observations"),
                              micro_observation("variant", "latency.p50", 0.9 - drop, true));
    if (ratio) {
        char *path = mlo_fs_join(dir, "samples.json", NULL);
        if (mlo_fs_write_atomic(path, "[[1,2,3]]", 9, NULL) != MLO_OK)
            abort();
        json_object_set_new(json_array_get(json_object_get(out, "observations"), 1), "samples",
                            json_string(path));
        free(path);
    }
    return out;
}

/* "<step>.nodes=A:B": which GPUs it is shown, and which of these files it may write to, as bits. */
static inline void micro_gpus(const char *model, const char *step, json_t *result)
{
    char *nodes = micro_value(model, step, "nodes"), *rest = NULL;
    const char *shown = getenv("CUDA_VISIBLE_DEVICES");
    int bit = 1, opened = 0;
    if (!nodes)
        return;
    for (char *node = strtok_r(nodes, ":", &rest); node; node = strtok_r(NULL, ":", &rest), bit *= 2) {
        int fd = open(node, O_RDWR | O_CLOEXEC);
        opened |= fd >= 0 ? bit : 0;
        if (fd >= 0)
            close(fd);
    }
    json_object_set_new(json_object_get(result, "report"), "gpus",
                        json_pack("{s:s, s:i}", "shown", shown ? shown : "(unset)", "opened", opened));
    free(nodes);
}

/* The samples that the job asks for: one of each dataset, of the digest of its role. */
static inline void micro_samples(const char *dir, const json_t *job, json_t *result)
{
    json_t *role, *files = json_object();
    size_t i;
    json_array_foreach(json_object_get(job, "samples"), i, role)
    {
        struct mlo_digest digest;
        const char *name = json_string_value(role);
        char *path = mlo_fs_join(dir, name, NULL);
        mlo_digest_of(name, strlen(name), &digest);
        if (mlo_fs_write_atomic(path, digest.bytes, MLO_SAMPLE_BYTES, NULL) != MLO_OK)
            abort();
        json_object_set_new(files, name, json_string(path));
        free(path);
    }
    json_object_set_new(result, "samples", files);
}

/* "all.signature=NAME": what it reads in the files that the job asks for, an input of that name; "-" is no
 * signature. */
static inline void micro_signatures(const char *model, const json_t *job, json_t *result)
{
    char *name = micro_value(model, "all", "signature");
    json_t *role, *out = json_object();
    size_t i;
    json_array_foreach(json_object_get(job, "signatures"), i, role)
    {
        const char *file = json_string_value(role);
        micro_log(model, file, "asked");
        if (name && strcmp(file, "labels") == 0)
            json_object_set_new(
                out, file,
                json_pack("{s:{s:i, s:s, s:[s]}}", "labels", "count", 1, "digest", "d", "names", name));
        else if (name)
            json_object_set_new(out, file,
                                json_pack("{s:[{s:s, s:s, s:[i]}], s:[]}", "inputs",
                                          strcmp(name, "-") == 0 ? "nome" : "name", name, "type", "float32",
                                          "shape", 1, "outputs"));
    }
    json_object_set_new(result, "signatures", out);
    free(name);
}

/* "<step>.hold=1": it works until release_steps(). */
static inline bool micro_held(const char *model, const char *step, const char *state)
{
    char *go = mlo_fs_join(state, "go", NULL);
    bool held = micro_number(model, step, "hold", 0) && !mlo_fs_exists(go);
    free(go);
    return held;
}

static inline int micro_step(const char *dir)
{
    json_t *job = NULL;
    struct mlo_error err = {0};
    struct mlo_buf model = MLO_BUF_INIT;
    char *in = mlo_fs_join(dir, "job.json", NULL), *out = mlo_fs_join(dir, "result.json", NULL);
    if (mlo_json_load_file(in, &job, &err) != MLO_OK ||
        mlo_fs_read(mlo_json_str(job, "model", ""), 1 << 20, &model, &err) != MLO_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const char *step = mlo_json_str(job, "step", ""), *text = mlo_buf_str(&model);
    char *state = micro_value(text, "all", "state"), crashed[32];
    micro_log(text, step, "start");
    if (json_is_string(json_object_get(job, "decision")))
        micro_log(text, step, json_is_string(json_object_get(job, "select")) ? "chose" : "followed");
    if (json_is_string(json_object_get(job, "checkpoints")))
        micro_log(text, step, "checkpoints");
    snprintf(crashed, sizeof crashed, "crash %s", step);
    if (micro_number(text, step, "crashes", 0) > micro_count(state, crashed)) {
        micro_log(text, step, "crash");
        fprintf(stderr, "about to crash\n");
        __builtin_trap(); /* a signal that it sends to itself does not end the first process of a namespace */
    }
    char *says = micro_value(text, step, "says");
    for (int64_t n = micro_number(text, step, "lines", 1); says && n > 0; n--)
        fprintf(stderr, "%s %lld\n", says, (long long)n);
    free(says);
    int64_t sleep_ms = micro_number(text, step, "sleep_ms", 0);
    for (int64_t ms = 0; ms < sleep_ms || micro_held(text, step, state); ms += 50) {
        printf("{\"fraction\":%.3f,\"message\":\"working\"}\n", (double)ms / (double)(ms + sleep_ms + 1000));
        fflush(stdout);
        usleep(50000);
    }
    json_t *result = strcmp(step, "search") == 0 ? micro_search(dir, job) : micro_result(dir, step, text);
    if (result) {
        micro_samples(dir, job, result);
        micro_gpus(text, step, result);
        micro_signatures(text, job, result);
    }
    enum mlo_status status = mlo_json_save_file(result, out, &err);
    micro_log(text, step, "end");
    json_decref(result);
    json_decref(job);
    mlo_buf_clear(&model);
    free(state);
    free(in);
    free(out);
    return status == MLO_OK ? 0 : 1;
}

/* --- the worker process -------------------------------------------------------------------------------- */

static volatile sig_atomic_t worker_stop;

static inline void worker_on_signal(int sig)
{
    MLO_UNUSED(sig);
    worker_stop = 1;
}

static inline int worker_process(const char *conninfo, const char *dir, const char *lease)
{
    struct mlo_error err = {0};
    struct mlo_db *db = NULL;
    struct mlo_blob_store *blobs = NULL;
    struct mlo_db_options db_options = {.conninfo = conninfo};
    struct mlo_buf url = MLO_BUF_INIT, work = MLO_BUF_INIT;
    int64_t lease_ms = LEASE_MS;
    mlo_str_to_i64(lease, &lease_ms);
    mlo_buf_printf(&url, "file:%s/blobs", dir);
    mlo_buf_printf(&work, "%s/work", dir);
    mlo_log_setup(MLO_LOG_ERROR, MLO_LOG_TEXT, 2, "worker");
    signal(SIGTERM, worker_on_signal);
    char *state = mlo_fs_join(dir, "state", NULL);
    const char *const allow_write[] = {state, NULL}, *const allow_read[] = {
                                                         MLOPT_SOURCE_DIR "/tests/lsan.supp", NULL};
    enum mlo_status status = mlo_db_open(&db_options, &db, &err);
    if (status == MLO_OK)
        status = mlo_blob_store_open(mlo_buf_str(&url), &blobs, &err);
    struct mlo_worker_options options = {
        .db = db,
        .blobs = blobs,
        .work_dir = mlo_buf_str(&work),
        .lease_ms = (uint32_t)lease_ms,
        .poll_ms = 200,
        .backoff_ms = 50,
        .allow_write = allow_write,
        .allow_read = allow_read,
    };
    if (status == MLO_OK)
        status = mlo_worker_run(&options, &worker_stop, &err);
    if (status != MLO_OK)
        fprintf(stderr, "worker: %s\n", err.message);
    mlo_blob_store_close(blobs);
    mlo_db_close(db);
    mlo_buf_clear(&url);
    mlo_buf_clear(&work);
    free(state);
    return status == MLO_OK ? 0 : 1;
}

/* Handles the program's two other roles: returns their exit status, or -1 for the tests themselves. */
static inline int service_main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], MLO_STEP_EXEC_VERB) == 0)
        return micro_step(argv[2]);
    if (argc == 5 && strcmp(argv[1], "worker") == 0)
        return worker_process(argv[2], argv[3], argv[4]);
    mlo_log_setup(MLO_LOG_ERROR, MLO_LOG_TEXT, 2, "test");
    return -1;
}

/* A test with a database and workers of its own. */
#define SERVICE_TEST(test) cmocka_unit_test_setup_teardown(test, service_setup, service_teardown)

static inline pid_t start_worker_process(struct service_fixture *f, int lease_ms)
{
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    char *self = mlo_process_self(),
         *conninfo = mlo_embedded_conninfo(f->pg->pg, MLO_ROLE_WORKER, f->pg->database);
    char lease[16];
    snprintf(lease, sizeof lease, "%d", lease_ms);
    const char *const argv[] = {self, "worker", conninfo, f->dir, lease, NULL};
    pid_t pid = -1;
    options.argv = argv;
    options.die_with_parent = true;
    assert_mlo_ok(mlo_process_start(&options, &pid, &f->err), &f->err);
    free(self);
    free(conninfo);
    return pid;
}

/* --- project, versions, datasets ----------------------------------------------------------------------- */

static inline void put_blob(struct service_fixture *f, const char *text, struct mlo_digest *digest)
{
    assert_mlo_ok(mlo_blob_put_bytes(f->blobs, text, strlen(text), digest, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(f->pg->conn, &SYSTEM, f->project, digest, strlen(text), &f->err), &f->err);
}

/* A version of the model `name` whose file tells the micro step what to do: lines "step.key=value". */
static inline int64_t add_version(struct service_fixture *f, const char *name, const char *orders)
{
    struct mlo_manifest_blob blob = {.role = "model", .name = "model.onnx"};
    struct mlo_version_info info;
    struct mlo_buf text = MLO_BUF_INIT;
    int64_t model;
    mlo_buf_printf(&text, "micro\nall.state=%s\n%s\n", f->state, orders);
    put_blob(f, mlo_buf_str(&text), &blob.digest);
    assert_mlo_ok(mlo_model_ensure(f->pg->conn, &SYSTEM, f->project, name, &model, &f->err), &f->err);
    assert_mlo_ok(mlo_version_create(f->pg->conn, &SYSTEM, model, "", &blob, 1, &info, &f->err), &f->err);
    mlo_buf_clear(&text);
    return info.id;
}

static inline void add_dataset(struct service_fixture *f, const char *name)
{
    struct mlo_manifest_blob blob = {.role = "data", .name = "data.npz"};
    struct mlo_dataset_info info;
    put_blob(f, name, &blob.digest);
    assert_mlo_ok(mlo_dataset_version_create(f->pg->conn, &SYSTEM, f->project, name, "", NULL, &blob, 1,
                                             &info, &f->err),
                  &f->err);
}

static inline int service_setup(void **state)
{
    struct service_fixture *f = calloc(1, sizeof *f);
    pg_fixture_setup(state);
    f->pg = *state;
    f->worker = pg_fixture_pool(f->pg, MLO_ROLE_WORKER, 24);
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-service-", &f->dir, &f->err), &f->err);
    f->state = mlo_fs_join(f->dir, "state", NULL);
    f->work = mlo_fs_join(f->dir, "work", NULL);
    char *blobs = mlo_fs_join(f->dir, "blobs", NULL);
    struct mlo_buf url = MLO_BUF_INIT;
    mlo_buf_printf(&url, "file:%s", blobs);
    f->blob_url = mlo_buf_take(&url);
    assert_mlo_ok(mlo_fs_mkdirs(f->state, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_store_open(f->blob_url, &f->blobs, &f->err), &f->err);
    assert_mlo_ok(mlo_project_create(f->pg->conn, &SYSTEM, "p", "", &f->project, &f->err), &f->err);
    add_dataset(f, "cal");
    add_dataset(f, "test");
    add_dataset(f, "sel");
    f->version = add_version(f, "m", "");
    free(blobs);
    *state = f;
    return 0;
}

static inline int service_teardown(void **state)
{
    struct service_fixture *f = *state;
    void *pg = f->pg;
    mlo_db_close(f->worker);
    mlo_blob_store_close(f->blobs);
    mlo_fs_remove_tree(f->dir);
    free(f->dir);
    free(f->state);
    free(f->work);
    free(f->blob_url);
    free(f);
    return pg_fixture_teardown(&pg);
}

/* --- runs ---------------------------------------------------------------------------------------------- */

static inline struct mlo_recipe *recipe(const char *text)
{
    struct mlo_error err = {0};
    struct mlo_recipe *out = NULL;
    assert_mlo_ok(mlo_recipe_parse(text, strlen(text), "test.yaml", &out, &err), &err);
    return out;
}

static inline int64_t submit(struct service_fixture *f, int64_t version, const char *text, int priority)
{
    struct mlo_recipe *r = recipe(text);
    struct mlo_run_request request = {
        .project = f->project, .version = version, .recipe = r, .priority = priority, .actor = &SYSTEM};
    int64_t run = 0;
    assert_mlo_ok(mlo_run_submit(f->pg->conn, &request, &run, &f->err), &f->err);
    mlo_recipe_free(r);
    return run;
}

static inline json_t *get_run(struct service_fixture *f, int64_t run)
{
    json_t *out = NULL;
    assert_mlo_ok(mlo_run_get(f->pg->conn, 0, run, &out, &f->err), &f->err);
    return out;
}

/* Asserts a member of the run, or with job >= 0 of one of its jobs. */
static inline void assert_run(struct service_fixture *f, int64_t run, int job, const char *key,
                              const char *wanted)
{
    json_t *value = get_run(f, run);
    json_t *object = job < 0 ? value : json_array_get(json_object_get(value, "jobs"), (size_t)job);
    const char *have = mlo_json_str(object, key, "(none)");
    if (strcmp(have, wanted) != 0) {
        char *all = json_dumps(value, JSON_INDENT(1));
        print_error("%s\n", all);
        free(all);
        fail_msg("run %lld job %d: %s is '%s' instead of '%s'", (long long)run, job, key, have, wanted);
    }
    json_decref(value);
}

static inline int64_t job_i64(struct service_fixture *f, int64_t run, int job, const char *key)
{
    json_t *value = get_run(f, run);
    int64_t n = mlo_json_i64(json_array_get(json_object_get(value, "jobs"), (size_t)job), key, -1);
    json_decref(value);
    return n;
}

/* Waits until the run is over. */
static inline void wait_run(struct service_fixture *f, int64_t run)
{
    uint64_t until = mlo_clock_ns() + PATIENCE_S * 1000000000ull;
    for (;;) {
        json_t *value = get_run(f, run);
        bool over = !json_is_null(json_object_get(value, "finished_at"));
        char *all = !over && mlo_clock_ns() > until ? json_dumps(value, JSON_INDENT(1)) : NULL;
        json_decref(value);
        if (over)
            return;
        if (all) {
            print_error("%s\n", all);
            free(all);
            fail_msg("run %lld is not over after %d s", (long long)run, PATIENCE_S);
        }
        mlo_clock_sleep_ms(20);
    }
}

/* A number from the database, as its owner. */
static inline int64_t count_rows(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    PGresult *result = PQexec(mlo_db_pg(conn), sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(mlo_db_pg(conn)));
    int64_t n = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    mlo_db_release(conn);
    return n;
}

/* Lets the steps end that hold. */
static inline void release_steps(struct service_fixture *f)
{
    char *go = mlo_fs_join(f->state, "go", NULL);
    assert_mlo_ok(mlo_fs_write_atomic(go, "", 0, &f->err), &f->err);
    free(go);
}

/* As if the time of every lease had passed without a heartbeat. */
static inline void end_leases(struct service_fixture *f)
{
    assert_true(count_rows(f, "with lost as (update mlopt.job set lease_until = now() - interval '1 s' "
                              "where token is not null returning 1) select count(*) from lost") > 0);
}

/* --- a worker in a thread of the test ------------------------------------------------------------------ */

struct test_worker {
    struct mlo_worker_options options;
    const char *allow_write[2], *allow_read[2];
    volatile sig_atomic_t stop;
    pthread_t thread;
    enum mlo_status status;
    struct mlo_error err;
};

static inline void *test_worker_main(void *arg)
{
    struct test_worker *w = arg;
    w->status = mlo_worker_run(&w->options, &w->stop, &w->err);
    return NULL;
}

/* With the given options; what every worker of a test needs is filled in. */
static inline void start_worker_with(struct service_fixture *f, struct test_worker *w,
                                     struct mlo_worker_options options)
{
    *w = (struct test_worker){.options = options};
    w->allow_write[0] = f->state; /* where the micro step logs */
    w->allow_read[0] = MLOPT_SOURCE_DIR "/tests/lsan.supp";
    w->options.db = f->worker;
    w->options.blobs = f->blobs;
    w->options.work_dir = f->work;
    w->options.lease_ms = LEASE_MS;
    w->options.poll_ms = 300;
    w->options.backoff_ms = 50;
    w->options.allow_write = w->allow_write;
    w->options.allow_read = w->allow_read;
    assert_int_equal(pthread_create(&w->thread, NULL, test_worker_main, w), 0);
}

static inline void start_worker(struct service_fixture *f, struct test_worker *w, unsigned slots)
{
    start_worker_with(f, w, (struct mlo_worker_options){.slots = slots});
}

static inline void stop_worker(struct test_worker *w)
{
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELAXED);
    pthread_join(w->thread, NULL);
    assert_mlo_ok(w->status, &w->err);
}

/* A worker of one slot takes the run, until it is over, and ends. */
static inline void work_through(struct service_fixture *f, int64_t run, const char *state)
{
    struct test_worker w;
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", state);
}

/* Files and folders under <work>/scratch, but for its lock. */
static inline int scratch_left(struct service_fixture *f)
{
    int n = 0;
    char *path = mlo_fs_join(f->work, "scratch", NULL);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        n += entry->d_name[0] != '.' && strcmp(entry->d_name, "lock") != 0;
    if (dir)
        closedir(dir);
    free(path);
    return n;
}

/* Files and folders in the scratch folders of workers, but for their locks: jobs at work, or left behind. */
static inline int jobs_in_scratch(struct service_fixture *f)
{
    int n = 0;
    glob_t found = {0};
    char *pattern = mlo_fs_join(f->work, "scratch", "*", "*", NULL);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            n += strcmp(mlo_fs_basename(found.gl_pathv[i]), "lock") != 0;
    globfree(&found);
    free(pattern);
    return n;
}

/* Waits until the expression holds. */
#define wait_until(expr)                                                                                     \
    do {                                                                                                     \
        uint64_t until_ = mlo_clock_ns() + PATIENCE_S * 1000000000ull;                                       \
        while (!(expr)) {                                                                                    \
            if (mlo_clock_ns() > until_)                                                                     \
                fail_msg("not within %d s: %s", PATIENCE_S, #expr);                                          \
            mlo_clock_sleep_ms(20);                                                                          \
        }                                                                                                    \
    } while (0)

/* Whether a step's process of this test is still there. */
static inline bool any_child_alive(struct service_fixture *f)
{
    char *path = mlo_fs_join(f->work, NULL);
    bool alive = false;
    DIR *dir = opendir("/proc");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char name[300];
        struct mlo_buf text = MLO_BUF_INIT;
        snprintf(name, sizeof name, "/proc/%s/cmdline", entry->d_name);
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            mlo_fs_read(name, 1 << 16, &text, NULL) == MLO_OK)
            for (size_t i = 0; i < text.len; i += strlen(text.data + i) + 1)
                alive |= mlo_str_starts(text.data + i, path);
        mlo_buf_clear(&text);
    }
    if (dir)
        closedir(dir);
    free(path);
    return alive;
}

static inline void assert_count(struct service_fixture *f, const char *sql, int64_t wanted)
{
    int64_t have = count_rows(f, sql);
    if (have != wanted)
        fail_msg("%s: %lld instead of %lld", sql, (long long)have, (long long)wanted);
}

/* Nothing is left behind: leases, scratch, attempts without an end. */
static inline void assert_clean(struct service_fixture *f)
{
    assert_count(f, "select count(*) from mlopt.job where token is not null or lease_until is not null", 0);
    assert_count(f, "select count(*) from mlopt.attempt where ended_at is null", 0);
    assert_int_equal(scratch_left(f), 0);
}

static inline void wait_for_log(struct service_fixture *f, const char *line, int count)
{
    wait_until(micro_count(f->state, line) >= count);
}

#endif
