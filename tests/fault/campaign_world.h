/* A lane of the campaign: its own PostgreSQL, and for each schedule a database, a store, `mlopt worker`
 * processes behind proxies, and runs of a small net with the real steps. */
#ifndef MLO_TESTS_CAMPAIGN_WORLD_H
#define MLO_TESTS_CAMPAIGN_WORLD_H

#include <sys/mman.h>
#include <sys/prctl.h>

#include "pipeline/measure/measure.h"
#include "tests/fault/campaign.h"
#include "tests/fault/campaign_place.h"
#include "tests/fault/campaign_proxy.h"
#include "tests/integration/service/service_fixture.h"

#define CAMPAIGN_RECIPE                                                                                      \
    "name: micro\ntarget: any\ndata: {calibrate: p/digits, evaluate: p/digits}\nsteps:\n"                    \
    "  - optimize: {}\n  - quantize: {}\n  - evaluate: {metrics: [top1], compare_to: source}\n"
enum { LEASE_S = SANITIZED ? 8 : 2, IMAGES = 8, PIXELS = 28 };

struct one_worker {
    pid_t pid;  /* 0: not there */
    pid_t host; /* holds its network namespace; 0: it is on ours */
    struct proxy proxy;
    bool leaves;                                   /* it was told to, or PostgreSQL is away while it starts */
    uint64_t start_ns, wake_ns, heal_ns, cable_ns; /* when; 0: not */
    enum proxy_order heal;
};

struct world {
    struct service_fixture *f;
    struct campaign_plan *plan;
    const struct place *place;
    const char *mlopt;
    char *plan_path, *log_path, *admin, *socket;
    struct one_worker workers[WORKERS_MAX];
    PGconn *asking; /* as the superuser; NULL: to be made */
    int64_t version, runs[RUNS_MAX];
    uint64_t database_ns;    /* when PostgreSQL comes back; 0: it is there */
    uint64_t free_ns[DISKS]; /* when there is room again; 0: there is */
    bool struck[FAULTS_MAX], verbose;
};

__attribute__((format(printf, 2, 3))) static inline void say(const struct world *w, const char *text, ...)
{
    va_list args;
    if (!w->verbose)
        return;
    va_start(args, text);
    printf("%9.3f  ", (double)(mlo_clock_ns() / 1000000 % 1000000) / 1000);
    vprintf(text, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
}

/* --- what is run ---------------------------------------------------------------------------------------- */

static inline void put_file(struct world *w, const char *path, struct mlo_digest *digest)
{
    struct service_fixture *f = w->f;
    struct mlo_buf bytes = MLO_BUF_INIT;
    assert_mlo_ok(mlo_fs_read(path, 64 << 20, &bytes, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_put_bytes(f->blobs, bytes.data, bytes.len, digest, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(f->pg->conn, &SYSTEM, f->project, digest, bytes.len, &f->err), &f->err);
    mlo_buf_clear(&bytes);
}

/* Images that look like something, and their labels. */
static inline void write_digits(struct world *w, const char *path)
{
    struct mlo_tensor images = {0}, labels = {0};
    struct mlo_error *err = &w->f->err;
    const int64_t dims[] = {IMAGES, 1, PIXELS, PIXELS};
    uint64_t random = 1; /* the same in every schedule */
    assert_mlo_ok(mlo_tensor_init(&images, MLO_FLOAT32, 4, dims, err), err);
    assert_mlo_ok(mlo_tensor_init(&labels, MLO_INT64, 1, dims, err), err);
    for (size_t i = 0; i < mlo_tensor_count(&images); i++)
        mlo_tensor_set_f64(&images, i, campaign_below(&random, 256) / 255.0);
    for (size_t i = 0; i < IMAGES; i++)
        mlo_tensor_set_f64(&labels, i, (double)(i % 10));
    const struct mlo_npz_array arrays[] = {{"image", &images}, {"y", &labels}};
    assert_mlo_ok(mlo_npz_write(path, arrays, 2, err), err);
    mlo_tensor_clear(&images);
    mlo_tensor_clear(&labels);
}

static inline void add_inputs(struct world *w)
{
    struct service_fixture *f = w->f;
    struct mlo_manifest_blob model = {.role = "model", .name = "model.onnx"},
                             data = {.role = "data", .name = "data.npz"};
    struct mlo_version_info version;
    struct mlo_dataset_info dataset;
    int64_t id;
    char *digits = mlo_fs_join(f->dir, "digits.npz", NULL);
    put_file(w, MLOPT_SOURCE_DIR "/tests/nets/models/mlp.onnx", &model.digest);
    write_digits(w, digits);
    put_file(w, digits, &data.digest);
    assert_mlo_ok(mlo_dataset_version_create(f->pg->conn, &SYSTEM, f->project, "digits", "", NULL, &data, 1,
                                             &dataset, &f->err),
                  &f->err);
    assert_mlo_ok(mlo_model_ensure(f->pg->conn, &SYSTEM, f->project, "net", &id, &f->err), &f->err);
    assert_mlo_ok(mlo_version_create(f->pg->conn, &SYSTEM, id, "", &model, 1, &version, &f->err), &f->err);
    w->version = version.id;
    free(digits);
}

/* --- processes ------------------------------------------------------------------------------------------ */

static inline void start_worker_of(struct world *w, int i)
{
    struct one_worker *worker = &w->workers[i];
    struct service_fixture *f = w->f;
    char database[160], plan[300], number[32], step[40], lease[16], slots[16], host[24],
        address[24] = "127.0.0.1";
    const char *asan = getenv("ASAN_OPTIONS");
    struct mlo_buf sanitizer = MLO_BUF_INIT;
    snprintf(host, sizeof host, "%d", (int)worker->host);
    if (worker->host)
        snprintf(address, sizeof address, "10.77.%d.1", i);
    mlo_buf_printf(&sanitizer, "ASAN_OPTIONS=verify_asan_link_order=0:%s", asan ? asan : "");
    snprintf(database, sizeof database, "MLOPT_DATABASE=host=%s port=%u user=" MLO_ROLE_WORKER " dbname=%s",
             address, worker->proxy.port, f->pg->database);
    snprintf(plan, sizeof plan, "MLOPT_FAULT_PLAN=%s", w->plan_path);
    snprintf(number, sizeof number, "MLOPT_FAULT_WORKER=%d", i);
    snprintf(step, sizeof step, "LD_CAMPAIGN_STEP_MS=%u", w->plan->schedule.step_ms);
    snprintf(lease, sizeof lease, "%d", LEASE_S);
    snprintf(slots, sizeof slots, "%d", w->plan->schedule.slots);
    const char *argv[] = {
        ENTER_PROGRAM,         "-t",         host,    "-n",        "--",  w->mlopt,  "worker", "--blobs",
        f->blob_url,           "--work-dir", f->work, "--lease",   lease, "--drain", "1",      "--allow-read",
        MLOPT_CAMPAIGN_POINTS, "--slots",    slots,   "--threads", "1",   NULL};
    enum { THE_PROGRAM = 5 };
    const char *env[] = {
        database, plan, number, step, mlo_buf_str(&sanitizer), "LD_PRELOAD=" MLOPT_CAMPAIGN_POINTS, NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    int log = open(w->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(log >= 0);
    o.argv = worker->host ? argv : argv + THE_PROGRAM, o.env = env, o.stdout_fd = o.stderr_fd = log;
    o.die_with_parent = true, o.death_signal = SIGKILL;
    atomic_store(&w->plan->registered[i], 0);
    assert_mlo_ok(mlo_process_start(&o, &worker->pid, &f->err), &f->err);
    worker->start_ns = 0;
    worker->leaves = false;
    close(log);
    mlo_buf_clear(&sanitizer);
    say(w, "worker %d is process %d", i, (int)worker->pid);
}

/* The parent of a process, 0 when there is none by that number. */
static inline pid_t parent_of(pid_t pid)
{
    char path[40], text[512] = "";
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
        parent = 0;
    fclose(file);
    return parent;
}

typedef void process_fn(pid_t pid, void *arg);

/* Calls `fn` for each process below `ancestor`, but not for those below `but`. */
static inline int each_below(pid_t ancestor, pid_t but, process_fn *fn, void *arg)
{
    int count = 0;
    DIR *dir = opendir("/proc");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int64_t pid = 0;
        if (!mlo_str_to_i64(entry->d_name, &pid) || pid == ancestor || pid == but)
            continue;
        pid_t up = (pid_t)pid;
        while (up > 1 && up != ancestor && up != but)
            up = parent_of(up);
        if (up != ancestor)
            continue;
        count++;
        if (fn)
            fn((pid_t)pid, arg);
    }
    if (dir)
        closedir(dir);
    return count;
}

static inline void kill_process(pid_t pid, void *arg)
{
    MLO_UNUSED(arg);
    kill(pid, SIGKILL);
}

/* --- beginning and end of a schedule -------------------------------------------------------------------- */

static inline void open_plan(struct world *w, const struct campaign_schedule *schedule)
{
    w->plan_path = mlo_fs_join(w->place->dir, "plan", NULL);
    int fd = open(w->plan_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ftruncate(fd, sizeof *w->plan) == 0);
    w->plan = mmap(NULL, sizeof *w->plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(w->plan != MAP_FAILED);
    w->plan->schedule = *schedule;
    close(fd);
}

static inline bool has_fault(const struct campaign_schedule *s, enum campaign_kind kind)
{
    bool has = false;
    for (int i = 0; i < s->count; i++)
        has |= s->faults[i].kind == kind;
    return has;
}

static inline void open_disk(struct world *w)
{
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_fs_mkdirs(w->f->work, &err), &err);
    if (w->place->disks[DISK_STORE] && !place_mount(w->f->work, DISK_MB[DISK_SCRATCH]))
        fail_msg("cannot mount %s: %s", w->f->work, strerror(errno));
}

static inline void world_open(struct world *w, const struct campaign_schedule *schedule,
                              const struct place *place, bool verbose)
{
    void *state = NULL;
    *w = (struct world){.mlopt = MLOPT_PROGRAM, .place = place, .verbose = verbose};
    service_setup(&state);
    w->f = state;
    w->log_path = mlo_fs_join(place->dir, "workers.log", NULL);
    unlink(w->log_path);
    w->admin = mlo_embedded_conninfo(w->f->pg->pg, NULL, w->f->pg->database);
    w->socket = pg_socket_of(w->admin);
    open_plan(w, schedule);
    open_disk(w);
    add_inputs(w);
    for (int i = 0; i < schedule->workers; i++) {
        assert_true(
            proxy_start(&w->workers[i].proxy, w->socket, place->hosts ? INADDR_ANY : INADDR_LOOPBACK));
        if (has_fault(schedule, FAULT_HOST))
            w->workers[i].host = place_host(i);
    }
}

/* After the workers. */
static inline void end_hosts(struct world *w)
{
    for (int i = 0; i < w->plan->schedule.workers; i++) {
        if (w->workers[i].host) {
            kill(w->workers[i].host, SIGKILL);
            waitpid(w->workers[i].host, NULL, 0);
        }
        w->workers[i].host = 0;
    }
}

static inline void world_close(struct world *w)
{
    void *state = w->f;
    char drop[96];
    char *conninfo = mlo_embedded_conninfo(w->f->pg->pg, NULL, "postgres");
    for (int i = 0; i < w->plan->schedule.workers; i++)
        proxy_stop(&w->workers[i].proxy);
    PQfinish(w->asking);
    snprintf(drop, sizeof drop, "DROP DATABASE %s WITH (FORCE)", w->f->pg->database);
    munmap(w->plan, sizeof *w->plan);
    if (w->place->disks[DISK_STORE])
        umount2(w->f->work, MNT_DETACH);
    service_teardown(&state);
    PGconn *pg = PQconnectdb(conninfo); /* a thousand of them would be 10 GB */
    PQclear(PQexec(pg, drop));
    PQfinish(pg);
    free(conninfo);
    free(w->plan_path);
    free(w->log_path);
    free(w->admin);
    free(w->socket);
}

/* A number, as the superuser on a connection of its own, which is made again when a fault ended it. False
 * while PostgreSQL is away. */
static inline bool ask_number(struct world *w, const char *sql, int64_t *n)
{
    if (!w->asking)
        w->asking = PQconnectdb(w->admin);
    PGresult *r = PQexec(w->asking, sql);
    bool ok =
        PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1 && mlo_str_to_i64(PQgetvalue(r, 0, 0), n);
    if (!ok && PQstatus(w->asking) == CONNECTION_OK && PQresultErrorField(r, PG_DIAG_SQLSTATE) &&
        strncmp(PQresultErrorField(r, PG_DIAG_SQLSTATE), "42", 2) == 0)
        fail_msg("%s: %s", sql, PQerrorMessage(w->asking));
    PQclear(r);
    if (!ok) {
        PQfinish(w->asking);
        w->asking = NULL;
    }
    return ok;
}

#endif
