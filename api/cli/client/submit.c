#include <string.h>
#include <unistd.h>

#include "api/cli/client/client.h"

enum { MAX_JOBS = 64, POLL_MS = 10000, PATIENCE_MS = 60000 };

/* What is shown of the jobs while the run goes on. */
struct watch {
    struct mlo_cli *cli;
    json_t *jobs; /* as in the run, kept up to date from events */
    bool live;    /* bars that are drawn again, on a terminal */
    int drawn;    /* lines on the screen */
};

static void draw(struct watch *w)
{
    enum { WIDTH = 20 };
    size_t i;
    json_t *job;
    if (w->drawn)
        fprintf(stderr, "\033[%dA", w->drawn);
    w->drawn = 0;
    json_array_foreach(w->jobs, i, job)
    {
        const char *state = mlo_json_str(job, "state", "");
        bool done = strcmp(state, "succeeded") == 0;
        double fraction = done ? 1 : mlo_json_f64(job, "progress", 0);
        char bar[WIDTH + 1];
        for (int b = 0; b < WIDTH; b++)
            bar[b] = b < (int)(fraction * WIDTH + 0.5) ? '#' : '.';
        bar[WIDTH] = '\0';
        fprintf(stderr, "\r\033[K%-12.12s [%s] %3.0f%%  %-9s %.40s\n", mlo_json_str(job, "step", ""), bar,
                100 * fraction, state,
                done ? (mlo_json_bool(job, "reused", false) ? "(reused)" : "")
                     : mlo_json_str(job, "message", ""));
        w->drawn++;
    }
    fflush(stderr);
}

static void line(struct watch *w, const json_t *job)
{
    if (w->cli->progress_mode == MLO_PROGRESS_JSON) {
        json_t *o = json_pack("{s:s,s:s,s:f,s:s}", "step", mlo_json_str(job, "step", ""), "state",
                              mlo_json_str(job, "state", ""), "fraction", mlo_json_f64(job, "progress", 0),
                              "message", mlo_json_str(job, "message", ""));
        char *text = json_dumps(o, JSON_COMPACT);
        if (text)
            fprintf(stderr, "%s\n", text);
        free(text);
        json_decref(o);
        return;
    }
    fprintf(stderr, "%-12s %s%s%s\n", mlo_json_str(job, "step", ""), mlo_json_str(job, "state", ""),
            mlo_json_bool(job, "reused", false) ? " (reused)" : "",
            strcmp(mlo_json_str(job, "state", ""), "failed") == 0 ? mlo_json_str(job, "message", "") : "");
}

static bool shows(const struct watch *w)
{
    return !w->cli->quiet && w->cli->progress_mode != MLO_PROGRESS_NONE;
}

static void apply_event(struct watch *w, const json_t *event)
{
    size_t i;
    json_t *job;
    int64_t id = mlo_json_i64(event, "job", 0);
    static const char *const copied[] = {"state", "progress", "message", "reused"};
    json_array_foreach(w->jobs, i, job)
    {
        if (!id || mlo_json_i64(job, "id", -1) != id)
            continue;
        char before[32];
        snprintf(before, sizeof before, "%s", mlo_json_str(job, "state", ""));
        for (size_t k = 0; k < MLO_COUNT(copied); k++) {
            json_t *value = json_object_get(event, copied[k]);
            if (value && !json_is_null(value))
                json_object_set(job, copied[k], value);
        }
        bool news = strcmp(before, mlo_json_str(job, "state", "")) != 0;
        if (shows(w) && !w->live && (news || w->cli->progress_mode == MLO_PROGRESS_JSON))
            line(w, job);
    }
}

enum mlo_status mlo_client_run_outcome(const json_t *run, struct mlo_error *err)
{
    const char *state = mlo_json_str(run, "state", "");
    size_t i;
    json_t *row;
    if (strcmp(state, "succeeded") == 0)
        return MLO_OK;
    const json_t *error = json_object_get(run, "error");
    long long id = (long long)mlo_json_i64(run, "id", 0);
    if (strcmp(state, "cancelled") == 0)
        return mlo_error_set(err, MLO_ECANCELLED, "run %lld was cancelled", id);
    mlo_error_set(err, MLO_EJOB, "run %lld failed: %s", id,
                  mlo_json_str(error, "message", "no reason is recorded"));
    json_array_foreach(json_object_get(run, "expectations"), i, row) if (!mlo_json_bool(row, "holds", true))
        mlo_error_where(err, "expectation '%s'", mlo_json_str(row, "condition", ""));
    if (mlo_json_str(error, "where", NULL) && *mlo_json_str(error, "where", ""))
        mlo_error_where(err, "%s", mlo_json_str(error, "where", ""));
    if (mlo_json_str(error, "hint", NULL) && *mlo_json_str(error, "hint", ""))
        mlo_error_hint(err, "%s", mlo_json_str(error, "hint", ""));
    mlo_error_hint(err, "mlopt runs %lld", id);
    return MLO_EJOB;
}

/* One round of waiting: events after *after, applied. A server that is away for a while is waited for. */
static enum mlo_status poll_events(struct mlo_client *client, struct watch *w, const char *project,
                                   int64_t id, int64_t wait_ms, int64_t *after, bool *done,
                                   struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *page = NULL, *event;
    size_t i;
    mlo_client_path(&path, "/v1/projects/%s/runs/%d/events?after=%d&wait_ms=%d", project, (long long)id,
                    (long long)*after, (long long)wait_ms);
    enum mlo_status status = mlo_client_get(client, mlo_buf_str(&path), &page, err);
    if (status == MLO_OK) {
        json_array_foreach(json_object_get(page, "items"), i, event) apply_event(w, event);
        if (json_array_size(json_object_get(page, "items")) && shows(w) && w->live)
            draw(w);
        *after = mlo_json_i64(page, "next", *after);
        *done = mlo_json_bool(page, "done", false);
    }
    json_decref(page);
    mlo_buf_clear(&path);
    return status;
}

bool mlo_client_may_ask_again(enum mlo_status status, uint64_t last_answer_ns)
{
    return mlo_status_info(status)->retry &&
           mlo_clock_ns() - last_answer_ns <= (uint64_t)PATIENCE_MS * 1000000u;
}

enum mlo_status mlo_client_wait_run(struct mlo_client *client, struct mlo_cli *cli, const char *project,
                                    int64_t id, int64_t timeout_s, json_t **run, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct watch w = {.cli = cli, .live = cli->progress_mode == MLO_PROGRESS_AUTO && isatty(STDERR_FILENO)};
    struct mlo_buf path = MLO_BUF_INIT;
    char note[128];
    int64_t after = 0;
    bool done = false;
    uint64_t begin = mlo_clock_ns(), last_answer = begin;
    snprintf(note, sizeof note, "the run goes on: mlopt runs %lld", (long long)id);
    mlo_cli_on_interrupt(note);
    mlo_client_path(&path, "/v1/projects/%s/runs/%d", project, (long long)id);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), run, err));
    w.jobs = json_deep_copy(json_object_get(*run, "jobs"));
    if (shows(&w) && w.live)
        draw(&w);
    while (!done) {
        int64_t left_ms = timeout_s * 1000 - (int64_t)((mlo_clock_ns() - begin) / 1000000u);
        if (timeout_s && left_ms <= 0) {
            status = mlo_error_set(err, MLO_ETIMEOUT, "run %lld is not done after %lld s; it goes on",
                                   (long long)id, (long long)timeout_s);
            mlo_error_hint(err, "mlopt runs %lld", (long long)id);
            cli->request_id[0] = '\0'; /* no request failed */
            goto out;
        }
        int64_t wait = timeout_s && left_ms < POLL_MS ? left_ms : POLL_MS;
        struct mlo_error trouble = {0};
        status = poll_events(client, &w, project, id, wait, &after, &done, &trouble);
        if (status == MLO_OK) {
            last_answer = mlo_clock_ns();
        } else if (!mlo_client_may_ask_again(status, last_answer)) {
            *err = trouble;
            mlo_error_hint(err, "mlopt runs %lld", (long long)id);
            goto out;
        } else {
            mlo_clock_sleep_ms(500);
        }
    }
    json_decref(*run);
    *run = NULL;
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), run, err));
out:
    mlo_cli_on_interrupt(NULL);
    json_decref(w.jobs);
    mlo_buf_clear(&path);
    return status;
}

/* Appends a text of the command line, which may be no UTF-8. */
static enum mlo_status add_text(json_t *set, const char *option, const char *text, struct mlo_error *err)
{
    json_t *value = json_string(text);
    if (!value)
        return mlo_error_set(err, MLO_EUSAGE, "%s is not UTF-8 text", option);
    return json_array_append_new(set, value) == 0 ? MLO_OK : mlo_error_nomem(err);
}

/* What --goal and --budget set of a search's recipe: a time, or a number of jobs. */
static enum mlo_status add_search(const struct mlo_cli *cli, json_t *set, struct mlo_error *err)
{
    const char *goal = mlo_cli_opt(cli, "goal"), *budget = mlo_cli_opt(cli, "budget");
    struct mlo_buf text = MLO_BUF_INIT;
    uint64_t seconds;
    int64_t jobs;
    if (goal && strpbrk(goal, "\"\\\n"))
        return mlo_error_set(err, MLO_EUSAGE, "--goal has quotes, backslashes or lines");
    enum mlo_status status = MLO_OK;
    if (goal) {
        mlo_buf_printf(&text, "search.goal=\"%s\"", goal);
        MLO_TRY(add_text(set, "--goal", mlo_buf_str(&text), err));
    }
    mlo_buf_reset(&text);
    if (budget && mlo_str_to_i64(budget, &jobs) && jobs > 0)
        mlo_buf_printf(&text, "search.jobs=%lld", (long long)jobs);
    else if (budget && mlo_str_to_seconds(budget, &seconds) && seconds > 0)
        mlo_buf_printf(&text, "search.time=%s", budget);
    else if (budget)
        status =
            mlo_error_set(err, MLO_EUSAGE, "--budget '%.40s' is neither a time nor a number of jobs", budget);
    if (status != MLO_OK)
        mlo_error_hint(err, "write --budget 30m, --budget 1h30m or --budget 40");
    else if (budget)
        status = add_text(set, "--budget", mlo_buf_str(&text), err);
out:
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_client_add_recipe(const struct mlo_cli *cli, bool searches, json_t *body,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    const char *recipe = NULL;
    json_t *set = json_array();
    bool goal = searches && (mlo_cli_opt(cli, "goal") || mlo_cli_opt(cli, "budget"));
    if (goal && !mlo_cli_opt(cli, "recipe"))
        recipe = "search";
    else
        MLO_TRY(mlo_cli_required(cli, "recipe", &recipe, err));
    bool is_file = strchr(recipe, '/') || mlo_str_ends(recipe, ".yaml") || mlo_str_ends(recipe, ".yml");
    if (is_file || mlo_fs_exists(recipe)) {
        MLO_TRY(mlo_fs_read(recipe, 1 << 20, &text, err));
        json_t *yaml = json_stringn(mlo_buf_str(&text), text.len);
        if (!yaml) {
            status = mlo_error_set(err, MLO_EFORMAT, "%s is not UTF-8 text", recipe);
            goto out;
        }
        json_object_set_new(body, "recipe", yaml);
        json_object_set_new(body, "recipe_file", json_string(mlo_fs_basename(recipe)));
    } else {
        json_object_set_new(body, "recipe_name", json_string(recipe));
    }
    const char *assignment;
    for (size_t i = 0; (assignment = mlo_cli_opt_at(cli, "set", i)); i++)
        MLO_TRY(add_text(set, "--set", assignment, err));
    if (goal)
        MLO_TRY(add_search(cli, set, err));
    if (json_array_size(set))
        json_object_set(body, "set", set);
out:
    json_decref(set);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status request_body(struct mlo_cli *cli, const struct mlo_client_ref *ref, json_t **out,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *body = json_pack("{s:s}", "model", ref->name);
    if (*ref->at && strcmp(ref->at, "latest") != 0) {
        int64_t version = 0;
        if (!mlo_str_to_i64(ref->at, &version)) {
            status = mlo_error_set(err, MLO_EUSAGE, "'@%s' is no version", ref->at);
            goto out;
        }
        json_object_set_new(body, "version", json_integer(version));
    }
    MLO_TRY(mlo_client_add_recipe(cli, true, body, err));
    *out = json_incref(body);
out:
    json_decref(body);
    return status;
}

static enum mlo_status post_run(struct mlo_client *client, const struct mlo_client_ref *ref,
                                const char *header, const json_t *body, struct mlo_response *response,
                                struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    mlo_client_path(&path, "/v1/projects/%s/runs", ref->project);
    enum mlo_status status = mlo_client_call(client, "POST", mlo_buf_str(&path), header, body, response, err);
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_print_end(struct mlo_client *client, struct mlo_cli *cli, const json_t *run,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *items = NULL, *all = NULL;
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%d/variants", mlo_json_str(run, "project", ""),
                    mlo_json_str(run, "model", ""), (long long)mlo_json_i64(run, "version", 0));
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
    if (cli->json) {
        all = json_pack("{s:O,s:O}", "run", run, "variants", items);
        MLO_TRY(mlo_cli_print_json(all, err));
    } else {
        MLO_TRY(mlo_client_print_variants(items, err));
    }
out:
    json_decref(all);
    json_decref(items);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status submit_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_response response = {0};
    const char *version;
    json_t *body = NULL, *run = NULL;
    int64_t timeout;
    struct mlo_buf key = MLO_BUF_INIT;
    const char *header;
    if (cli->arg_count > 1 && mlo_cli_has(cli, "wait"))
        return mlo_error_set(err, MLO_EUSAGE, "--wait follows one run: submit one, or `mlopt watch` each");
    MLO_TRY(mlo_cli_int(cli, "timeout", 0, 1, 1 << 30, &timeout, err));
    MLO_TRY(mlo_client_key(cli, &key, &header, err));
    if (mlo_cli_has(cli, "dry-run")) {
        status = mlo_client_plan(cli, err);
        goto out;
    }
    if (cli->arg_count > 1) {
        MLO_TRY(mlo_client_add_recipe(cli, true, body = json_object(), err));
        status = mlo_client_submit_many(cli, body, err);
        goto out;
    }
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, true, false, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    MLO_TRY(request_body(cli, &ref, &body, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(post_run(client, &ref, header, body, &response, err));
    int64_t id = mlo_json_i64(response.json, "id", 0);
    if (!mlo_cli_has(cli, "wait")) {
        MLO_TRY(cli->json ? mlo_cli_print_json(response.json, err)
                          : mlo_cli_print(err, "run %lld  %s/%s@%lld  %s  %s\n", (long long)id, ref.project,
                                          ref.name, (long long)mlo_json_i64(response.json, "version", 0),
                                          mlo_json_str(response.json, "recipe", ""),
                                          mlo_json_str(response.json, "state", "")));
        goto out;
    }
    mlo_cli_note(cli, "run %lld: %s on %s/%s@%lld", (long long)id, mlo_json_str(response.json, "recipe", ""),
                 ref.project, ref.name, (long long)mlo_json_i64(response.json, "version", 0));
    MLO_TRY(mlo_client_wait_run(client, cli, ref.project, id, timeout, &run, err));
    MLO_TRY(mlo_client_print_end(client, cli, run, err));
    cli->request_id[0] = '\0'; /* the requests went well: it is the run that may have failed */
    MLO_TRY(mlo_client_run_outcome(run, err));
out:
    mlo_buf_clear(&key);
    json_decref(body);
    json_decref(run);
    mlo_response_clear(&response);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    MLO_OPTIONS_RECIPE,
    {"dry-run", 0, NULL, "submit nothing: say what would run, as `mlopt plan` does"},
    {"wait", 0, NULL, "follow the run to its end; exit code 6 when it fails"},
    {"timeout", 0, "S", "with --wait: exit code 7 after S seconds; the run goes on"},
    {"idempotency-key", 0, "KEY", "for a day, the same key gives the same run"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_submit = {
    .name = "submit",
    .group = "Runs",
    .run = submit_run,
    .options = options,
    .positional = "PROJECT/MODEL[@V]… --recipe FILE|NAME",
    .min_args = 1,
    .max_args = -1,
    .help = "run a recipe on a version, or on many of a project",
    .detail = "  mlopt submit shop/ranker --goal 'accuracy_drop<=0.5pt, min latency' --budget 30m\n"
              "  mlopt submit shop/ranker --recipe int8-cpu --wait \\\n"
              "      --set data.calibrate=shop/calibration --set data.evaluate=shop/test\n"
              "  mlopt submit shop/ranker shop/tagger shop/scorer@4 --recipe int8-cpu\n",
};
