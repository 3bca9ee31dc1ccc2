#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

static json_t *side_json(const struct mlo_bench_side *s)
{
    return json_pack("{s:s,s:s?,s:o,s:o,s:o,s:o,s:f,s:I,s:O?}", "path", s->path, "engine", s->engine_version,
                     "p50_us", mlo_local_estimate_json(&s->p50_us), "p90_us",
                     mlo_local_estimate_json(&s->p90_us), "p95_us", mlo_local_estimate_json(&s->p95_us),
                     "p99_us", mlo_local_estimate_json(&s->p99_us), "throughput", s->throughput,
                     "peak_rss_bytes", (json_int_t)s->peak_rss_bytes, "samples_us", s->samples);
}

static void side_row(struct mlo_table *table, const struct mlo_bench_side *s,
                     const struct mlo_estimate *ratio)
{
    char p50[32], low[32], high[32], p99[32], rate[32], rss[32], range[80], text[96] = "";
    snprintf(range, sizeof range, "[%s, %s]", mlo_cli_duration(s->p50_us.low, low),
             mlo_cli_duration(s->p50_us.high, high));
    snprintf(rate, sizeof rate, "%.0f/s", s->throughput);
    if (ratio)
        snprintf(text, sizeof text, "%.3f [%.3f, %.3f]", ratio->value, ratio->low, ratio->high);
    mlo_table_row(table, s->path, s->engine_version, mlo_cli_duration(s->p50_us.value, p50), range,
                  mlo_cli_duration(s->p99_us.value, p99), rate, mlo_str_size(s->peak_rss_bytes, rss), text);
}

static enum mlo_status bench_options(const struct mlo_cli *cli, struct mlo_bench_options *out,
                                     struct mlo_local_dims *dims, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_run_options run;
    int64_t rounds;
    memset(out, 0, sizeof *out);
    MLO_TRY(mlo_local_engine(cli, &run, err));
    MLO_TRY(mlo_local_dims(cli, dims, err));
    out->dims = dims->list;
    out->dim_count = dims->count;
    MLO_TRY(mlo_cli_int(cli, "batch", 1, 1, 65536, &out->batch, err));
    MLO_TRY(mlo_cli_int(cli, "rounds", 5, mlo_cli_has(cli, "sweep") ? 1 : 2, 100, &rounds, err));
    MLO_TRY(mlo_cli_float(cli, "seconds", 5, 0.01, 86400, &out->seconds, err));
    const char *against = mlo_cli_opt(cli, "against-engine");
    if (against) {
        MLO_TRY(mlo_engine_find(against, &out->engine_b, err));
        MLO_TRY(out->engine_b->probe(err));
    }
    const char *clock = mlo_cli_opt(cli, "clock");
    if (clock && strcmp(clock, "cpu") != 0 && strcmp(clock, "wall") != 0 && strcmp(clock, "device") != 0) {
        status = mlo_error_set(err, MLO_EUSAGE, "--clock is wall, cpu or device, not '%s'", clock);
        goto out;
    }
    out->cpu_clock = clock && strcmp(clock, "cpu") == 0;
    if (out->cpu_clock && run.threads > 1) {
        status =
            mlo_error_set(err, MLO_EUSAGE, "--clock cpu is for one thread: that of several is no latency");
        goto out;
    }
    out->engine = run.engine;
    out->threads = run.threads;
    out->rounds = (int)rounds;
out:
    return status;
}

static enum mlo_status print_result(const struct mlo_cli *cli, const struct mlo_bench_options *o,
                                    const struct mlo_bench_result *r, bool two, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (cli->json) {
        json_t *all = json_pack("{s:s,s:s,s:I,s:i,s:i,s:f,s:O?,s:o}", "protocol", MLO_BENCH_PROTOCOL,
                                "engine", o->engine->version(), "batch", (json_int_t)o->batch, "threads",
                                (int)o->threads, "rounds", o->rounds, "seconds", o->seconds, "machine",
                                r->machine, "a", side_json(&r->a));
        if (two) {
            json_object_set_new(all, "b", side_json(&r->b));
            json_object_set_new(all, "ratio_p50", mlo_local_estimate_json(&r->ratio_p50));
            json_object_set_new(all, "ratio_p99", mlo_local_estimate_json(&r->ratio_p99));
        }
        status = mlo_cli_print_json(all, err);
        json_decref(all);
        return status;
    }
    struct mlo_table table;
    char class_name[96];
    mlo_table_init(&table, "model|engine|p50>|95%|p99>|samples>|peak memory>|ratio of p50 (95%)");
    side_row(&table, &r->a, NULL);
    if (two)
        side_row(&table, &r->b, &r->ratio_p50);
    MLO_TRY(mlo_table_print_take(&table, err));
    MLO_TRY(mlo_cli_print(err, "batch %lld, %u thread%s on %s; %d processes a side, in turn%s\n",
                          (long long)o->batch, o->threads, o->threads == 1 ? "" : "s",
                          mlo_machine_class(class_name, sizeof class_name), o->rounds,
                          o->cpu_clock ? "; processor time" : ""));
out:
    return status;
}

static const char *const of_sweeps[] = {"batches", "p99-limit", "concurrency"};

static enum mlo_status bench_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_bench_options options;
    struct mlo_local_dims dims;
    struct mlo_bench_result result = {0};
    struct mlo_cli_progress progress;
    struct mlo_model *model = NULL;
    MLO_TRY(bench_options(cli, &options, &dims, err));
    MLO_TRY(mlo_local_trust(cli, err));
    bool two = cli->arg_count == 2 || options.engine_b;
    for (int i = 0; i < cli->arg_count; i++) { /* say what is wrong before any child is started */
        struct mlo_plan_file *plan = NULL;
        if (mlo_plan_is_file(cli->args[i]))
            MLO_TRY(mlo_local_open_plan(cli, cli->args[i], NULL, &plan, err));
        else
            MLO_TRY(mlo_local_model(cli->args[i], &model, err));
        mlo_plan_close(plan);
        mlo_model_free(model);
        model = NULL;
    }
    if (mlo_cli_has(cli, "sweep")) {
        status = mlo_local_sweep(cli, &options, err);
        goto out;
    }
    const char *clock = mlo_cli_opt(cli, "clock");
    bool profiles = mlo_cli_has(cli, "profile") || mlo_cli_has(cli, "flame"),
         device = clock ? strcmp(clock, "device") == 0 : !two && !profiles && options.engine->measure;
    for (size_t i = 0; i < MLO_COUNT(of_sweeps) - device; i++) /* the last is of devices, too */
        if (mlo_cli_has(cli, of_sweeps[i])) {
            status = mlo_error_set(err, MLO_EUSAGE, "--%s belongs to --sweep", of_sweeps[i]);
            goto out;
        }
    if (profiles) {
        status = mlo_local_profile(cli, &options, err);
        goto out;
    }
    if (device) {
        status = two ? mlo_error_set(err, MLO_EUSAGE, "--clock device is for one model")
                     : mlo_local_device(cli, &options, err);
        goto out;
    }
    const char *second = cli->arg_count == 2 ? cli->args[1] : two ? cli->args[0] : NULL;
    mlo_cli_progress_start(&progress, cli, "bench");
    status = mlo_bench(cli->args[0], second, &options, &result, mlo_cli_progress, &progress, err);
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK)
        goto out;
    MLO_TRY(print_result(cli, &options, &result, two, err));
out:
    mlo_bench_result_clear(&result);
    return status;
}

static const struct mlo_cli_option bench_options_table[] = {
    {"batch", 0, "N", "samples a call (1)"},
    MLO_OPTION_THREADS,
    {"seconds", 0, "S", "measuring time a side, over all rounds (5)"},
    {"rounds", 0, "N", "processes a side, in turn (5)"},
    MLO_OPTION_ENGINE,
    {"against-engine", 0, "NAME", "the engine of the second side: B, or A again when there is no B"},
    {"clock", 0, "wall|cpu|device",
     "cpu: processor time of one thread, on a machine that others use; device: by the GPU's events, without "
     "copies (wall; device of one model on a GPU)"},
    MLO_OPTION_TRUST,
    MLO_OPTION_DIM,
    {"profile", 0, NULL, "where the time of one model goes, by kind of node and node, under the roofline"},
    {"flame", 0, "FILE.svg", "the same as a drawing: width is time, by the scopes of the nodes' names"},
    {"sweep", 0, NULL, "throughput and latency of one model over --batches and --concurrency"},
    {"batches", 0, "N,N…", "of --sweep: samples a call (1,2,4,8,16,32)"},
    {"concurrency", 0, "N,N…",
     "of --sweep: calls at once in one process (1,2,4… up to the CPUs); on a GPU without it: streams that "
     "share "
     "it, each with a program of its own (none)"},
    {"p99-limit", 0, "MS", "of --sweep: the best throughput is that of a point whose p99 is under it"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_bench = {
    .name = "bench",
    .group = "Local (no server needed)",
    .run = bench_run,
    .options = bench_options_table,
    .positional = "A.onnx [B.onnx]",
    .min_args = 1,
    .max_args = 2,
    .help = "measure latency, of one model or of two in turn",
};

/* --- what the program calls itself with -------------------------------------------------------- */

static enum mlo_status bench_child_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_bench_options options;
    struct mlo_local_dims dims;
    int64_t together;
    MLO_TRY(bench_options(cli, &options, &dims, err));
    MLO_TRY(mlo_cli_int(cli, "concurrency", 1, 1, 4096, &together, err));
    options.concurrency = (unsigned)together;
    MLO_TRY(mlo_bench_child(cli->args[0], &options, 1, err));
out:
    return status;
}

const struct mlo_cli_verb mlo_verb_bench_child = {
    .name = "bench-child",
    .group = "Hidden",
    .run = bench_child_run,
    .options = bench_options_table,
    .positional = "MODEL.onnx",
    .min_args = 1,
    .max_args = 1,
    .flags = MLO_CLI_HIDDEN | MLO_CLI_OWN_SIGNALS,
    .help = "one side of a benchmark: prints one JSON object",
};

static enum mlo_status step_exec_run(struct mlo_cli *cli, struct mlo_error *err)
{
    int64_t fd;
    enum mlo_status status = mlo_cli_int(cli, "progress-fd", 1, -1, 1023, &fd, err);
    mlo_steps_return_memory();
    return status != MLO_OK ? status : mlo_step_child(cli->args[0], (int)fd, err);
}

static const struct mlo_cli_option step_options[] = {
    {"progress-fd", 0, "N", "where progress goes as JSON lines (1)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_step_exec = {
    .name = "step-exec",
    .group = "Hidden",
    .run = step_exec_run,
    .options = step_options,
    .positional = "DIR",
    .min_args = 1,
    .max_args = 1,
    .flags = MLO_CLI_HIDDEN | MLO_CLI_OWN_SIGNALS,
    .help = "runs the step described in DIR/job.json",
};
