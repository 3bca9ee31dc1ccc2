/* The fault campaign: runs of a small net by real `mlopt worker` processes, under random schedules of faults.
 * After each schedule every run is complete or honestly failed, every effect is there once, and nothing is
 * left: no lease, lock, scratch folder or process.
 *
 *     fault.campaign [--schedules N] [--seconds S] [--lanes L] [--seed CAMPAIGN] [--replay SCHEDULE] [--keep]
 *
 * A schedule follows from its seed alone; one that fails prints the command that replays it. The table at the
 * end says which fault struck in which state how often. Without arguments: 8 s, a new seed. Lanes run
 * schedules beside each other, each with its own PostgreSQL. MLOPT_FAULT_SECONDS and MLOPT_FAULT_SEED are
 * --seconds and --seed. */
#include <getopt.h>

#include "tests/fault/campaign_check.h"

enum { LANES_MAX = 16, FAILURES_MAX = 5, SHORT_S = 8, RUN_PATIENCE_S = 240, END_PATIENCE_S = 120 };

static struct {
    int64_t schedules, seconds, lanes, seed, replay;
    bool keep, seeded;
    int lane; /* -1: the parent */
    const char *board;
} set = {.lanes = 2, .lane = -1};

/* What lanes and parent share, in a file. */
struct board {
    uint64_t seed, until_ns;
    int64_t schedules;
    unsigned kinds; /* faults that this machine allows */
    _Atomic uint64_t next, done;
    _Atomic unsigned struck[FAULT_KINDS][STATE_COUNT], missed[FAULT_KINDS], passed[STATE_COUNT];
    _Atomic unsigned succeeded, failed, cancelled, attempts, lost, restarts;
    _Atomic uint64_t now[LANES_MAX]; /* the schedule of each lane; 0: none */
};

static struct board *board;

/* --- one schedule --------------------------------------------------------------------------------------- */

static void describe(const struct campaign_schedule *s)
{
    printf("schedule %llu: %d workers of %d slots, %d runs, steps of %u ms more\n",
           (unsigned long long)s->seed, s->workers, s->slots, s->runs, s->step_ms);
    for (int i = 0; i < s->count; i++) {
        const struct campaign_fault *f = &s->faults[i];
        printf("  %s at %s", CAMPAIGN_FAULTS[f->kind].name, CAMPAIGN_STATES[f->state].name);
        if (f->state == STATE_TIME)
            printf(", worker %d, after %u ms", f->worker, f->at_ms);
        else
            printf(", time %d", f->occurrence + 1);
        printf("; for %u ms, variant %u\n", f->hold_ms, f->variant);
    }
    fflush(stdout);
}

/* Until every run is over. */
static void go_on(struct world *w)
{
    uint64_t begun = mlo_clock_ns(), next = 0;
    int64_t open = 1;
    while (open > 0) {
        uint64_t now = mlo_clock_ns();
        look_at_faults(w, begun);
        if (now >= next) {
            if (!w->database_ns)
                ask_number(w, "select count(*) from mlopt.run where finished_at is null", &open);
            next = mlo_clock_ns() + 100 * MS_NS;
        }
        if (now - begun > (uint64_t)RUN_PATIENCE_S * 1000 * MS_NS)
            fail_msg("%lld runs are not over after %d s", (long long)open, RUN_PATIENCE_S);
        mlo_clock_sleep_ms(3);
    }
}

/* Ends the workers as their operator does; a hung one is found out here. */
static void end_workers(struct world *w)
{
    uint64_t until = mlo_clock_ns() + (uint64_t)END_PATIENCE_S * 1000 * MS_NS;
    for (int i = 0; i < w->plan->schedule.workers; i++) {
        struct one_worker *worker = &w->workers[i];
        if (worker->pid && !atomic_load(&w->plan->registered[i]))
            kill(worker->pid, SIGKILL); /* it has just begun: there is nothing to hand back */
        else if (worker->pid)
            kill(worker->pid, SIGTERM);
    }
    for (int i = 0; i < w->plan->schedule.workers; i++) {
        struct one_worker *worker = &w->workers[i];
        int ended = 0;
        while (worker->pid && waitpid(worker->pid, &ended, WNOHANG) == 0) {
            if (mlo_clock_ns() > until)
                fail_msg("worker %d does not end within %d s of SIGTERM", i, END_PATIENCE_S);
            mlo_clock_sleep_ms(5);
        }
        if (worker->pid && atomic_load(&w->plan->registered[i]) && ended != 0)
            fail_msg("worker %d ended with %x", i, (unsigned)ended);
        worker->pid = 0;
        atomic_store(&worker->proxy.order, PROXY_RESET); /* what is mute still holds PostgreSQL's side */
    }
}

/* What a killed worker left is removed by the next one. */
static void sweep_scratch(struct world *w)
{
    int64_t left = 1;
    uint64_t until = mlo_clock_ns() + (uint64_t)END_PATIENCE_S * 1000 * MS_NS;
    while (scratch_left(w->f) > 0) {
        start_worker_of(w, 0);
        while (!atomic_load(&w->plan->registered[0])) {
            if (mlo_clock_ns() > until)
                fail_msg("the last worker does not start");
            mlo_clock_sleep_ms(5);
        }
        end_workers(w);
    }
    while (!ask_number(w,
                       "select count(*) from pg_stat_activity where usename = '" MLO_ROLE_WORKER
                       "' and datname = current_database()",
                       &left) ||
           left) {
        if (mlo_clock_ns() > until)
            fail_msg("%lld connections of workers stay in PostgreSQL", (long long)left);
        mlo_clock_sleep_ms(10);
    }
}

static void note_results(struct world *w)
{
    const struct campaign_schedule *s = &w->plan->schedule;
    for (int i = 0; i < s->count; i++) {
        const struct campaign_fault *f = &s->faults[i];
        if (w->struck[i])
            atomic_fetch_add(&board->struck[f->kind][f->state], 1);
        else
            atomic_fetch_add(&board->missed[f->kind], 1);
    }
    for (int i = 0; i < STATE_COUNT; i++)
        atomic_fetch_add(&board->passed[i], atomic_load(&w->plan->passed[i]));
    const struct {
        _Atomic unsigned *to;
        const char *sql;
    } counts[] = {
        {&board->succeeded, "select count(*) from run where state = 'succeeded'"},
        {&board->failed, "select count(*) from run where state = 'failed'"},
        {&board->cancelled, "select count(*) from run where state = 'cancelled'"},
        {&board->attempts, "select count(*) from attempt"},
        {&board->lost, "select count(*) from attempt where outcome = 'lost'"},
    };
    for (size_t i = 0; i < MLO_COUNT(counts); i++)
        atomic_fetch_add(counts[i].to, (unsigned)count_rows(w->f, counts[i].sql));
}

static struct place place; /* of this lane */

static void run_schedule(const struct campaign_schedule *schedule, bool verbose, char **calm)
{
    struct world w;
    world_open(&w, schedule, &place, verbose);
    for (int i = 0; i < schedule->workers; i++)
        start_worker_of(&w, i);
    atomic_store(&w.plan->armed, 1);
    for (int i = 0; i < schedule->runs; i++)
        w.runs[i] = submit(w.f, w.version, CAMPAIGN_RECIPE, i % 2);
    go_on(&w);
    say(&w, "every run is over");
    heal_all(&w);
    end_workers(&w);
    sweep_scratch(&w);
    end_hosts(&w);
    check_world(&w, calm);
    note_results(&w);
    world_close(&w);
}

/* --- lanes ---------------------------------------------------------------------------------------------- */

/* Of the campaign's n-th schedule. Kinds take turns as the first fault, so that a short campaign has each:
 * the seed is the first one, from the n-th on, that begins with the kind whose turn it is. */
static uint64_t seed_of(uint64_t n)
{
    uint64_t random = board->seed + n * 0x2545f4914f6cdd1du, turn = (board->seed + n) % FAULT_KINDS;
    struct campaign_schedule s;
    while (!(board->kinds >> turn & 1))
        turn = (turn + 1) % FAULT_KINDS;
    do
        campaign_schedule_of(campaign_random(&random) >> 16, board->kinds, &s);
    while (s.faults[0].kind != turn || s.seed == 0);
    return s.seed;
}

static void calm_schedule(char **calm)
{
    const struct campaign_schedule none = {.workers = 2, .runs = 2, .slots = 1, .step_ms = 10};
    run_schedule(&none, false, calm);
}

/* On a small disk the log must be too. */
static void set_log_size(void)
{
    char *conninfo = mlo_embedded_conninfo(pg_fixture_server, NULL, "postgres");
    PGconn *pg = PQconnectdb(conninfo);
    static const char *const texts[] = {"alter system set max_wal_size = '96MB'",
                                        "alter system set min_wal_size = '32MB'", "select pg_reload_conf()"};
    for (size_t i = 0; i < MLO_COUNT(texts); i++)
        PQclear(PQexec(pg, texts[i]));
    PQfinish(pg);
    free(conninfo);
}

static bool allowed(enum campaign_kind kind)
{
    return board->kinds >> kind & 1;
}

/* The lane's own disks and hosts, and its PostgreSQL. */
static bool open_place(void)
{
    place.dir = strdup(getenv("TMPDIR"));
    if (allowed(FAULT_DISK)) {
        assert_int_equal(unshare(CLONE_NEWNS), 0);
        place.disks[DISK_DATABASE] = place_disk(&place, "d", DISK_MB[DISK_DATABASE]);
        place.disks[DISK_STORE] = place_disk(&place, "s", DISK_MB[DISK_STORE]);
        setenv("TMPDIR", place.disks[DISK_DATABASE], 1);
    }
    if (allowed(FAULT_HOST)) {
        assert_int_equal(unshare(CLONE_NEWNET), 0);
        assert_true(place_loopback());
        place.hosts = true;
    }
    if (pg_fixture_start(NULL) != 0)
        return false;
    set_log_size();
    if (place.disks[DISK_STORE])
        setenv("TMPDIR", place.disks[DISK_STORE], 1);
    return true;
}

static int lane_main(void)
{
    char *calm = NULL;
    struct campaign_schedule schedule;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    mlo_log_setup(MLO_LOG_ERROR, MLO_LOG_TEXT, 2, "campaign");
    if (!open_place())
        return 1;
    calm_schedule(&calm);
    for (int done = 0; done == 0 || mlo_clock_ns() < board->until_ns; done++) { /* one at least */
        uint64_t n = atomic_fetch_add(&board->next, 1);
        if (n >= (uint64_t)board->schedules)
            break;
        uint64_t seed = set.replay ? (uint64_t)set.replay : seed_of(n);
        campaign_schedule_of(seed, board->kinds, &schedule);
        atomic_store(&board->now[set.lane], seed);
        describe(&schedule);
        run_schedule(&schedule, true, &calm);
        atomic_store(&board->now[set.lane], 0);
        atomic_fetch_add(&board->done, 1);
        if (!set.replay && freopen(NULL, "w", stdout)) /* only the last schedule is of interest */
            fflush(stdout);
    }
    free(calm);
    free(place.dir);
    free(place.disks[DISK_STORE]);
    free(place.disks[DISK_DATABASE]);
    return pg_fixture_stop(NULL);
}

struct lane {
    pid_t pid;
    char *dir, *log;
};

static void start_lane(struct lane *lane, int number, const char *dir)
{
    char name[16], index[16], seed[32];
    struct mlo_error err = {0};
    char *self = mlo_process_self();
    snprintf(name, sizeof name, "l%d", number);
    snprintf(index, sizeof index, "%d", number);
    snprintf(seed, sizeof seed, "%lld", (long long)set.replay);
    if (!lane->dir) {
        lane->dir = mlo_fs_join(dir, name, NULL);
        struct mlo_buf log = MLO_BUF_INIT;
        mlo_buf_printf(&log, "%s/%s.log", dir, name);
        lane->log = mlo_buf_take(&log);
    }
    assert_mlo_ok(mlo_fs_mkdirs(lane->dir, &err), &err);
    assert_int_equal(chmod(lane->dir, 0755), 0);
    struct mlo_buf temporary = MLO_BUF_INIT;
    mlo_buf_printf(&temporary, "TMPDIR=%s", lane->dir);
    const char *argv[] = {self, "--lane", index, "--board", set.board, "--replay", seed, NULL};
    const char *env[] = {mlo_buf_str(&temporary), "CMOCKA_TEST_ABORT=1", NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    int log = open(lane->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    assert_true(log >= 0);
    o.argv = argv, o.env = env, o.stdout_fd = o.stderr_fd = log;
    o.die_with_parent = true, o.death_signal = SIGTERM;
    assert_mlo_ok(mlo_process_start(&o, &lane->pid, &err), &err);
    close(log);
    mlo_buf_clear(&temporary);
    free(self);
}

static void print_tail(const char *path, size_t most)
{
    struct mlo_buf text = MLO_BUF_INIT;
    if (mlo_fs_read(path, 256 << 20, &text, NULL) == MLO_OK)
        printf("%s\n", mlo_buf_str(&text) + (text.len > most ? text.len - most : 0));
    mlo_buf_clear(&text);
}

static void print_workers(const struct lane *lane)
{
    char *path = mlo_fs_join(lane->dir, "workers.log", NULL);
    print_tail(path, 8000);
    free(path);
}

/* --- the parent ----------------------------------------------------------------------------------------- */

static void print_table(void)
{
    printf("\nfault x state: how often it struck there\n%-9s", "");
    for (int s = 0; s < STATE_COUNT; s++)
        printf(" %9s", CAMPAIGN_STATES[s].name);
    printf(" %9s\n", "not met");
    for (int k = 0; k < FAULT_KINDS; k++) {
        printf("%-9s", CAMPAIGN_FAULTS[k].name);
        for (int s = 0; s < STATE_COUNT; s++)
            printf(" %9u", atomic_load(&board->struck[k][s]));
        printf(" %9u%s\n", atomic_load(&board->missed[k]),
               board->kinds >> k & 1 ? "" : "  (not on this machine)");
    }
    printf("%-9s", "passed");
    for (int s = 0; s < STATE_COUNT; s++)
        printf(" %9u", atomic_load(&board->passed[s]));
    printf("\n%llu schedules; runs: %u succeeded, %u failed honestly, %u cancelled; attempts: %u, %u of them "
           "lost\ncampaign seed %lld\n",
           (unsigned long long)atomic_load(&board->done), atomic_load(&board->succeeded),
           atomic_load(&board->failed), atomic_load(&board->cancelled), atomic_load(&board->attempts),
           atomic_load(&board->lost), (long long)board->seed);
    fflush(stdout);
}

static void report_failure(const struct lane *lane, uint64_t seed, int ended)
{
    char *self = mlo_process_self();
    if (seed)
        printf("FAILED (%x): schedule %llu; replay with %s --replay %llu\n", (unsigned)ended,
               (unsigned long long)seed, self, (unsigned long long)seed);
    else
        printf("FAILED (%x) before its first schedule\n", (unsigned)ended);
    print_tail(lane->log, 6000);
    print_workers(lane);
    fflush(stdout);
    free(self);
}

/* True: the lane is to go on with the next schedule. */
static bool lane_ended(struct lane *lane, int number, int ended, int *failures)
{
    uint64_t seed = atomic_exchange(&board->now[number], 0);
    if (ended == 0)
        return false;
    ++*failures;
    report_failure(lane, seed, ended);
    if (set.keep)
        printf("its logs, and what was not mounted for it alone: %s\n", lane->dir);
    else
        mlo_fs_remove_tree(lane->dir);
    return seed && !set.keep && *failures < FAILURES_MAX;
}

static void open_board(const char *path, bool make)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0600);
    assert_true(fd >= 0 && (!make || ftruncate(fd, sizeof *board) == 0));
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(board != MAP_FAILED);
    close(fd);
}

static unsigned kinds_here(void)
{
    unsigned kinds = (1u << FAULT_KINDS) - 1;
    if (!place_can_disks()) {
        printf("no disks of its own may be mounted: no schedule fills one\n");
        kinds &= ~(1u << FAULT_SCRATCH | 1u << FAULT_STORE | 1u << FAULT_DISK);
    }
    if (SANITIZED || !place_can_hosts()) { /* a sanitizer's library is not for nsenter */
        printf("no network namespaces, or no ip and nsenter: no host is cut off\n");
        kinds &= ~(1u << FAULT_HOST);
    }
    return kinds;
}

/* A state that no attempt comes to any more, after a change of the program, would be a column of zeros. */
static int unseen_states(void)
{
    static const enum campaign_state always[] = {STATE_CLAIM,     STATE_CLAIMED, STATE_FETCHED, STATE_STARTED,
                                                 STATE_DONE,      STATE_WRITTEN, STATE_STORED,  STATE_COMMIT,
                                                 STATE_COMMITTED, STATE_SETTLE};
    int unseen = 0;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (atomic_load(&board->passed[always[i]]) == 0) {
            printf("FAILED: no attempt came to the state '%s'\n", CAMPAIGN_STATES[always[i]].name);
            unseen++;
        }
    return unseen;
}

static void test_campaign__leaves_every_run_complete_or_honestly_failed(void **state)
{
    struct lane lanes[LANES_MAX] = {{0}};
    struct mlo_error err = {0};
    char *dir = NULL, *path;
    int failures = 0, ended;
    MLO_UNUSED(state);
    assert_mlo_ok(mlo_fs_tempdir(NULL, "campaign-", &dir, &err), &err);
    assert_int_equal(chmod(dir, 0755), 0);
    path = mlo_fs_join(dir, "board", NULL);
    set.board = path;
    open_board(path, true);
    board->seed = set.seeded ? (uint64_t)set.seed : (uint64_t)mlo_clock_utc_us() / 1000 % 100000000;
    board->schedules = set.replay ? 1 : set.schedules ? set.schedules : INT64_MAX;
    int64_t seconds = set.seconds || set.schedules || set.replay ? set.seconds : SHORT_S;
    board->until_ns = seconds ? mlo_clock_ns() + (uint64_t)seconds * 1000 * MS_NS : UINT64_MAX;
    board->kinds = kinds_here();
    printf("campaign seed %llu\n", (unsigned long long)board->seed);
    fflush(stdout);
    int count = set.replay ? 1 : (int)set.lanes;
    for (int i = 0; i < count; i++)
        start_lane(&lanes[i], i, dir);
    for (pid_t pid; (pid = waitpid(-1, &ended, 0)) > 0 || errno == EINTR;)
        for (int i = 0; i < count; i++)
            if (pid > 0 && lanes[i].pid == pid && lane_ended(&lanes[i], i, ended, &failures))
                start_lane(&lanes[i], i, dir);
    if (set.replay && !failures)
        print_tail(lanes[0].log, 20000);
    print_table();
    if (!set.replay && !failures)
        failures = unseen_states();
    for (int i = 0; i < count; i++) {
        free(lanes[i].dir);
        free(lanes[i].log);
    }
    if (!set.keep || !failures)
        mlo_fs_remove_tree(dir);
    munmap(board, sizeof *board);
    free(path);
    free(dir);
    assert_int_equal(failures, 0);
}

static bool read_options(int argc, char **argv)
{
    static const struct option OPTIONS[] = {
        {"schedules", 1, NULL, 'n'}, {"seconds", 1, NULL, 't'}, {"lanes", 1, NULL, 'l'},
        {"seed", 1, NULL, 's'},      {"replay", 1, NULL, 'r'},  {"keep", 0, NULL, 'k'},
        {"lane", 1, NULL, 'L'},      {"board", 1, NULL, 'B'},   {0}};
    for (int c; (c = getopt_long(argc, argv, "", OPTIONS, NULL)) != -1;) {
        int64_t number = 0, *to = c == 'n'   ? &set.schedules
                                  : c == 't' ? &set.seconds
                                  : c == 'l' ? &set.lanes
                                  : c == 's' ? &set.seed
                                  : c == 'r' ? &set.replay
                                             : NULL;
        if (c == 'B')
            set.board = optarg;
        else if (c == 'k')
            set.keep = true;
        else if (c == '?' || !mlo_str_to_i64(optarg, &number))
            return false;
        else if (c == 'L')
            set.lane = (int)number;
        if (to)
            *to = number;
        set.seeded |= c == 's';
    }
    return set.lanes >= 1 && set.lanes <= LANES_MAX && set.lane < LANES_MAX;
}

int main(int argc, char **argv)
{
    const char *seconds = getenv("MLOPT_FAULT_SECONDS"), *seed = getenv("MLOPT_FAULT_SEED");
    set.seeded = seed && mlo_str_to_i64(seed, &set.seed);
    if (!read_options(argc, argv) || (seconds && !set.seconds && !mlo_str_to_i64(seconds, &set.seconds))) {
        fprintf(stderr,
                "usage: %s [--schedules N] [--seconds S] [--lanes L] [--seed CAMPAIGN] [--replay "
                "SCHEDULE] [--keep]\n",
                argv[0]);
        return 2;
    }
    if (set.lane >= 0) {
        open_board(set.board, false);
        return lane_main();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_campaign__leaves_every_run_complete_or_honestly_failed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
