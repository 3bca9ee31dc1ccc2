/* What the steps of a run write: once, or followed to its end; and following the run itself. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"

/* The pause between two looks, and what it grows to while nothing is written. */
enum { PAUSE_MS = 1000, PAUSE_MAX_MS = 10000, RETRY_MS = 500 };

/* What was printed of one attempt's text, which only grows. */
struct seen {
    int64_t job, attempt;
    size_t printed; /* bytes */
};

struct follow {
    struct mlo_client *client;
    const char *log_path, *run_path;
    struct seen *seen;
    size_t count, room;
    int64_t job, attempt; /* whose text was printed last */
};

/* Valid until the next call; NULL: no memory. */
static struct seen *seen_of(struct follow *f, int64_t job, int64_t attempt)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->seen[i].job == job && f->seen[i].attempt == attempt)
            return &f->seen[i];
    if (f->count == f->room) {
        size_t room = f->room ? 2 * f->room : 64;
        struct seen *seen = reallocarray(f->seen, room, sizeof *seen);
        if (!seen)
            return NULL;
        f->seen = seen;
        f->room = room;
    }
    f->seen[f->count] = (struct seen){.job = job, .attempt = attempt};
    return &f->seen[f->count++];
}

/* Complete lines only, unless the run is over: a line is not torn by another job's. *any: something was new.
 */
static enum mlo_status print_news(struct follow *f, const json_t *item, bool over, bool *any,
                                  struct mlo_error *err)
{
    const char *text = mlo_json_str(item, "text", "");
    int64_t job = mlo_json_i64(item, "job", 0), attempt = mlo_json_i64(item, "attempt", 0);
    struct seen *s = seen_of(f, job, attempt);
    size_t size = strlen(text);
    if (!s)
        return mlo_error_nomem(err);
    if (!over)
        while (size && text[size - 1] != '\n')
            size--;
    if (s->printed >= size)
        return MLO_OK;
    enum mlo_status status = MLO_OK;
    if (f->job != job || f->attempt != attempt)
        status = mlo_cli_print(err, "== job %lld, %s, attempt %lld\n", (long long)job,
                               mlo_json_str(item, "name", ""), (long long)attempt);
    f->job = job;
    f->attempt = attempt;
    if (status == MLO_OK)
        status = mlo_cli_print(err, "%.*s%s", (int)(size - s->printed), text + s->printed,
                               text[size - 1] == '\n' ? "" : "\n");
    s->printed = size;
    *any = true;
    return status;
}

static bool is_over(const json_t *run)
{
    const char *state = mlo_json_str(run, "state", "");
    return strcmp(state, "queued") != 0 && strcmp(state, "running") != 0;
}

/* One look: whether the run is over, and then its log, so that nothing is missed. *items is yours. */
static enum mlo_status look(struct follow *f, bool *over, json_t **items, struct mlo_error *err)
{
    json_t *run = NULL;
    enum mlo_status status = mlo_client_get(f->client, f->run_path, &run, err);
    *over = status == MLO_OK && is_over(run);
    json_decref(run);
    return status == MLO_OK ? mlo_client_list(f->client, f->log_path, 0, items, err) : status;
}

/* The log until the run has ended. */
static enum mlo_status follow_log(struct mlo_client *client, const json_t *run, const char *log_path,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *items = NULL, *item;
    size_t i;
    uint64_t last_answer = mlo_clock_ns();
    uint32_t pause = PAUSE_MS;
    char note[128];
    long long id = (long long)mlo_json_i64(run, "id", 0);
    bool over = is_over(run);
    mlo_client_path(&path, "/v1/projects/%s/runs/%d", mlo_json_str(run, "project", ""), id);
    struct follow f = {.client = client, .log_path = log_path, .run_path = mlo_buf_str(&path)};
    snprintf(note, sizeof note, "the run goes on: mlopt runs %lld", id);
    mlo_cli_on_interrupt(over ? NULL : note);
    for (;;) {
        struct mlo_error trouble = {0};
        bool any = false;
        status = look(&f, &over, &items, &trouble);
        if (status != MLO_OK && !mlo_client_may_ask_again(status, last_answer)) {
            *err = trouble;
            mlo_error_hint(err, "mlopt runs %lld", id);
            goto out;
        }
        if (status != MLO_OK) {
            mlo_clock_sleep_ms(RETRY_MS);
            continue;
        }
        last_answer = mlo_clock_ns();
        json_array_foreach(items, i, item) MLO_TRY(print_news(&f, item, over, &any, err));
        json_decref(items);
        items = NULL;
        if (over)
            break;
        pause = any ? PAUSE_MS : MLO_MIN(2 * pause, (uint32_t)PAUSE_MAX_MS);
        mlo_clock_sleep_ms(pause);
    }
out:
    mlo_cli_on_interrupt(NULL);
    json_decref(items);
    mlo_buf_clear(&path);
    free(f.seen);
    return status;
}

static enum mlo_status print_log(const json_t *items, struct mlo_error *err)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)items, i, item)
    {
        const char *text = mlo_json_str(item, "text", "");
        size_t size = strlen(text);
        enum mlo_status status =
            mlo_cli_print(err, "== job %lld, %s, attempt %lld\n%s%s", (long long)mlo_json_i64(item, "job", 0),
                          mlo_json_str(item, "name", ""), (long long)mlo_json_i64(item, "attempt", 0), text,
                          size && text[size - 1] != '\n' ? "\n" : "");
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

static enum mlo_status log_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *run = NULL, *items = NULL;
    int64_t id, job;
    MLO_TRY(mlo_client_run_id(cli->args[0], &id, err));
    MLO_TRY(mlo_cli_int(cli, "job", 0, 1, INT64_MAX, &job, err));
    if (cli->json && mlo_cli_has(cli, "follow")) {
        status =
            mlo_error_set(err, MLO_EUSAGE, "--follow prints text as it comes, which -o json cannot hold");
        mlo_error_hint(err, "without --follow, or without -o json");
        goto out;
    }
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_find_run(client, mlo_cli_opt(cli, "project"), id, &run, err));
    mlo_client_path(&path, "/v1/projects/%s/runs/%d/log", mlo_json_str(run, "project", ""), (long long)id);
    if (job)
        mlo_buf_printf(&path, "?job=%lld", (long long)job);
    if (mlo_cli_has(cli, "follow")) {
        MLO_TRY(follow_log(client, run, mlo_buf_str(&path), err));
        goto out;
    }
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(items, err) : print_log(items, err));
out:
    json_decref(run);
    json_decref(items);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static enum mlo_status watch_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    json_t *found = NULL, *run = NULL;
    int64_t id, timeout;
    MLO_TRY(mlo_client_run_id(cli->args[0], &id, err));
    MLO_TRY(mlo_cli_int(cli, "timeout", 0, 1, 1 << 30, &timeout, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_find_run(client, mlo_cli_opt(cli, "project"), id, &found, err));
    const char *project = mlo_json_str(found, "project", "");
    mlo_cli_note(cli, "run %lld: %s on %s/%s@%lld", (long long)id, mlo_json_str(found, "recipe", ""), project,
                 mlo_json_str(found, "model", ""), (long long)mlo_json_i64(found, "version", 0));
    MLO_TRY(mlo_client_wait_run(client, cli, project, id, timeout, &run, err));
    MLO_TRY(mlo_client_print_end(client, cli, run, err));
    cli->request_id[0] = '\0'; /* the requests went well: it is the run that may have failed */
    MLO_TRY(mlo_client_run_outcome(run, err));
out:
    json_decref(found);
    json_decref(run);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option log_options[] = {
    {"project", 0, "NAME", "the run's project"},
    {"job", 0, "N", "only this job's"},
    {"follow", 'f', NULL, "go on until the run has ended"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_runs_log = {
    .name = "runs log",
    .group = "Runs",
    .run = log_run,
    .options = log_options,
    .positional = "ID",
    .min_args = 1,
    .max_args = 1,
    .help = "what the steps of a run wrote on stderr",
};
static const struct mlo_cli_option watch_options[] = {
    {"project", 0, "NAME", "the run's project"},
    {"timeout", 0, "S", "exit code 7 after S seconds; the run goes on"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_watch = {
    .name = "watch",
    .group = "Runs",
    .run = watch_run,
    .options = watch_options,
    .positional = "ID",
    .min_args = 1,
    .max_args = 1,
    .help = "follow a run to its end; exit code 6 when it fails",
};
