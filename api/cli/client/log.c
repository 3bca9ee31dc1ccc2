/* What the steps of a run write: once, or followed to its end; and following the run itself. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"

enum { POLL_MS = 1000, TAIL_MAX = 160, SEEN_MAX = 512 };

/* What was printed of one attempt's text. */
struct seen {
    int64_t job, attempt;
    size_t printed;          /* bytes of the text as it was then */
    uint32_t sum;            /* of them */
    char tail[TAIL_MAX + 1]; /* their end */
};

struct follow {
    struct mlo_cli *cli;
    struct seen seen[SEEN_MAX];
    size_t count;
    int64_t job, attempt; /* whose text was printed last */
};

static uint32_t sum_of(const char *text, size_t size)
{
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ (unsigned char)text[i]) * 16777619u;
    return sum;
}

static struct seen *seen_of(struct follow *f, int64_t job, int64_t attempt)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->seen[i].job == job && f->seen[i].attempt == attempt)
            return &f->seen[i];
    if (f->count == SEEN_MAX)
        return NULL;
    f->seen[f->count] = (struct seen){.job = job, .attempt = attempt};
    return &f->seen[f->count++];
}

/* Where the new part of the text begins. The server keeps the beginning and the end of a long text: what was
 * printed is then found again by its end, and when that is gone, all that is there is printed. */
static const char *news(const struct seen *s, const char *text, size_t size)
{
    if (!s || s->printed == 0)
        return text;
    if (s->printed <= size && sum_of(text, s->printed) == s->sum)
        return text + s->printed;
    const char *last = NULL;
    for (const char *at = strstr(text, s->tail); at; at = strstr(at + 1, s->tail))
        last = at;
    return last ? last + strlen(s->tail) : text;
}

/* Complete lines only, unless the run is over: a line is not torn by another job's. */
static enum mlo_status print_news(struct follow *f, const json_t *item, bool over, struct mlo_error *err)
{
    const char *text = mlo_json_str(item, "text", "");
    int64_t job = mlo_json_i64(item, "job", 0), attempt = mlo_json_i64(item, "attempt", 0);
    struct seen *s = seen_of(f, job, attempt);
    size_t size = strlen(text);
    if (!over)
        while (size && text[size - 1] != '\n')
            size--;
    const char *from = news(s, text, size);
    if (from >= text + size)
        return MLO_OK;
    enum mlo_status status = MLO_OK;
    if (f->job != job || f->attempt != attempt)
        status = mlo_cli_print(err, "== job %lld, %s, attempt %lld\n", (long long)job,
                               mlo_json_str(item, "name", ""), (long long)attempt);
    f->job = job;
    f->attempt = attempt;
    int length = (int)(text + size - from);
    if (status == MLO_OK)
        status = mlo_cli_print(err, "%.*s%s", length, from, text[size - 1] == '\n' ? "" : "\n");
    if (s) {
        size_t tail = MLO_MIN(size, (size_t)TAIL_MAX);
        s->printed = size;
        s->sum = sum_of(text, size);
        memcpy(s->tail, text + size - tail, tail);
        s->tail[tail] = '\0';
    }
    return status;
}

static bool is_over(const json_t *run)
{
    const char *state = mlo_json_str(run, "state", "");
    return strcmp(state, "queued") != 0 && strcmp(state, "running") != 0;
}

/* The log until the run has ended: its state is read before the log is, so that nothing is missed. */
static enum mlo_status follow_log(struct mlo_client *client, struct mlo_cli *cli, const json_t *first,
                                  const char *log_path, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct follow *f = calloc(1, sizeof *f);
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *run = NULL, *items = NULL, *item;
    size_t i;
    bool over = is_over(first);
    if (!f)
        return mlo_error_nomem(err);
    f->cli = cli;
    mlo_client_path(&path, "/v1/projects/%s/runs/%d", mlo_json_str(first, "project", ""),
                    (long long)mlo_json_i64(first, "id", 0));
    for (;;) {
        MLO_TRY(mlo_client_list(client, log_path, 0, &items, err));
        json_array_foreach(items, i, item) MLO_TRY(print_news(f, item, over, err));
        json_decref(items);
        items = NULL;
        if (over)
            break;
        mlo_clock_sleep_ms(POLL_MS);
        MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &run, err));
        over = is_over(run);
        json_decref(run);
        run = NULL;
    }
out:
    json_decref(items);
    json_decref(run);
    mlo_buf_clear(&path);
    free(f);
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
        MLO_TRY(follow_log(client, cli, run, mlo_buf_str(&path), err));
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
