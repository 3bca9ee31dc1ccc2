#include "tests/cm.h"

#include "pipeline/steps/steps.h"

static struct mlo_recipe *parse(const char *text)
{
    struct mlo_recipe *recipe;
    struct mlo_error err = {0};
    assert_ok(mlo_recipe_parse(text, strlen(text), "r.yaml", &recipe, &err));
    return recipe;
}

static void refused(const char *text, const char *message, const char *hint)
{
    struct mlo_recipe *recipe;
    struct mlo_error err = {0};
    if (mlo_recipe_parse(text, strlen(text), "r.yaml", &recipe, &err) == MLO_OK)
        fail_msg("accepted: %s", text);
    assert_null(recipe);
    assert_contains(err.message, message);
    assert_contains(err.hint, hint);
}

static void test_recipe__builtin_ones_parse(void **state)
{
    MLO_UNUSED(state);
    size_t count, size;
    const char *const *names = mlo_recipe_builtin_names(&count);
    assert_true(count >= 1);
    for (size_t i = 0; i < count; i++) {
        struct mlo_error err = {0};
        struct mlo_recipe *recipe;
        const char *text = mlo_recipe_builtin(names[i], &size);
        assert_non_null(text);
        assert_ok(mlo_recipe_parse(text, size, names[i], &recipe, &err));
        assert_string_equal(recipe->name, names[i]);
        mlo_recipe_free(recipe);
    }
    assert_null(mlo_recipe_builtin("no-such", &size));
}

static void test_recipe__resolves_every_option(void **state)
{
    MLO_UNUSED(state);
    struct mlo_recipe *r =
        parse("name: a\ndata: {evaluate: p/d}\nsteps:\n  - optimize\n  - evaluate: {metrics: [top1, top5]}\n"
              "  - benchmark: {batch: 8}\nexpect: [\"top1 >= source - 0.5pt\"]\n");
    assert_string_equal(r->target, "any");
    assert_string_equal(r->evaluate, "p/d");
    assert_null(r->calibrate);
    assert_int_equal(r->step_count, 3);
    assert_string_equal(mlo_json_str(r->steps[1].options, "compare_to", ""), "none");
    assert_int_equal(json_array_size(json_object_get(r->steps[1].options, "metrics")), 2);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(r->steps[2].options, "batch"), 0)), 8);
    assert_int_equal(mlo_json_i64(r->steps[2].options, "threads", 0), 1);
    assert_int_equal(r->expect_count, 1);
    mlo_recipe_free(r);
}

static void test_recipe__written_differently_is_the_same_recipe(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_digest a, b, c;
    struct mlo_recipe *r = parse("name: a\nsteps: [{benchmark: {batch: [1], threads: 1}}]\n");
    assert_ok(mlo_json_digest(r->canonical, &a, &err));
    mlo_recipe_free(r);
    r = parse("# a comment\nsteps:\n  - benchmark: {}\nname: \"a\"\n");
    assert_ok(mlo_json_digest(r->canonical, &b, &err));
    assert_true(mlo_digest_eq(&a, &b));
    assert_ok(mlo_recipe_set(r, "benchmark.batch=[1, 2]", &err));
    assert_ok(mlo_json_digest(r->canonical, &c, &err));
    assert_false(mlo_digest_eq(&a, &c));
    mlo_recipe_free(r);
}

static void test_recipe__says_what_its_jobs_need(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_recipe *r =
        parse("name: a\ntimeout: 2h\nneeds: {memory: 8GB, gpus: 2, gpu: nvidia h100}\nsteps:\n"
              "  - optimize: {}\n    needs: {memory: 1.5GiB, disk: 20 GB, gpus: 0}\n"
              "  - {benchmark: {}, timeout: 1h30m}\n  - compile: {}\n");
    struct mlo_needs n = mlo_needs_over(&r->needs, &r->steps[0].needs);
    assert_true(n.memory_bytes == 1610612736 && n.disk_bytes == 20000000000 && n.timeout_s == 7200);
    assert_true(n.gpus == 0 && n.gpu[0] == '\0');
    n = mlo_needs_over(&r->needs, &r->steps[1].needs);
    assert_true(n.memory_bytes == 8000000000 && n.disk_bytes == 0 && n.timeout_s == 5400 && n.gpus == 2);
    assert_string_equal(n.gpu, "H100");
    /* its canonical text says the same */
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest a, b;
    assert_ok(mlo_json_digest(r->canonical, &a, &err));
    mlo_json_canonical(r->canonical, &text);
    struct mlo_recipe *again = parse(mlo_buf_str(&text));
    assert_ok(mlo_json_digest(again->canonical, &b, &err));
    assert_true(mlo_digest_eq(&a, &b));
    mlo_recipe_free(again);
    mlo_buf_clear(&text);
    assert_ok(mlo_recipe_set(r, "needs.memory=16GB", &err));
    assert_ok(mlo_recipe_set(r, "timeout=300", &err));
    assert_true(r->needs.memory_bytes == 16000000000 && r->needs.timeout_s == 300);
    assert_int_equal(mlo_json_i64(r->canonical, "timeout", 0), 300);
    assert_int_equal(mlo_recipe_set(r, "needs.gpus=0", &err), MLO_EINVAL); /* of a model, and none */
    assert_int_equal(mlo_recipe_set(r, "needs.ram=1GB", &err), MLO_EINVAL);
    mlo_recipe_free(r);
    /* who says nothing needs nothing that is said: the recipe is the one that it was */
    r = parse("name: a\nsteps: [optimize]\n");
    assert_null(json_object_get(r->canonical, "needs"));
    n = mlo_needs_over(&r->needs, &r->steps[0].needs);
    assert_true(n.gpus == 0 && !n.memory_bytes && !n.timeout_s);
    mlo_recipe_free(r);
}

static void test_recipe__needs_that_mean_nothing_are_refused(void **state)
{
    MLO_UNUSED(state);
    refused("name: a\nneeds: {memory: lots}\nsteps: [optimize]\n", "r.yaml:2: 'needs.memory' must be a size",
            "8GB");
    refused("name: a\nneeds: {memory: 8}\nsteps: [optimize]\n", "'needs.memory' must be a size of 1 MB",
            "8GB");
    refused("name: a\nneeds:\n  gpu: 4090\nsteps: [optimize]\n", "r.yaml:3: 'needs.gpu' must be the model",
            "quotes");
    refused("name: a\nneeds: {gpus: -1}\nsteps: [optimize]\n", "'needs.gpus' must be a whole number",
            "alone");
    refused("name: a\nneeds: {gpus: 0, gpu: H100}\nsteps: [optimize]\n", "H100, and wants none",
            "leave 'gpu' out");
    refused("name: a\nneeds: {momory: 1GB}\nsteps: [optimize]\n", "unknown key 'momory'",
            "did you mean 'memory'?");
    refused("name: a\nneeds: [1]\nsteps: [optimize]\n", "'needs' must say", "memory: 8GB");
    refused("name: a\ntimeout: 0\nsteps: [optimize]\n", "'timeout' must be a time", "2h");
    refused("name: a\nsteps:\n  - optimize\n  - compile: {}\n    timeout: soon\n",
            "r.yaml:5: 'steps[1].timeout' must be a time", "1h30m");
    refused("name: a\nsteps:\n  - optimize: {}\n    needs: {disk: 1e40GB}\n", "'steps[0].needs.disk' must be",
            "8GB");
    refused("name: a\nsteps:\n  - optimize: {}\n    compile: {}\n", "a step is written", "needs: {memory");
    refused("name: a\nsteps:\n  - needs: {memory: 8GB}\n", "a step is written", "needs: {memory");
}

static void test_needs__estimates_every_step(void **state)
{
    MLO_UNUSED(state);
    size_t count;
    const struct mlo_step *const *table = mlo_step_table(&count);
    for (size_t i = 0; i < count; i++) {
        struct mlo_needs small = MLO_NEEDS_INIT, large = MLO_NEEDS_INIT, said = MLO_NEEDS_INIT;
        if (!mlo_needs_known(table[i]->name))
            fail_msg("nothing says what %s takes", table[i]->name);
        mlo_needs_estimate(table[i]->name, 1000, &small);
        mlo_needs_estimate(table[i]->name, 4000000000, &large);
        assert_true(small.memory_bytes < 200000000 && small.disk_bytes < 100000000);
        assert_true(large.memory_bytes > 4000000000 && large.disk_bytes >= 4000000000);
        mlo_needs_estimate(table[i]->name, UINT64_MAX, &large);
        said.memory_bytes = said.disk_bytes = 5000000;
        mlo_needs_estimate(table[i]->name, 4000000000, &said);
        assert_true(said.memory_bytes == 5000000 && said.disk_bytes == 5000000);
    }
}

/* Models of all sizes make few kinds of jobs, and none needs less than it would have. */
static void test_needs__estimates_are_of_few_sizes(void **state)
{
    MLO_UNUSED(state);
    uint64_t last = 0;
    int kinds = 0;
    for (uint64_t size = 1000000; size < 1000000000; size += 100000) {
        struct mlo_needs n = MLO_NEEDS_INIT;
        mlo_needs_estimate("optimize", size, &n);
        double exact = 64e6 + 7 * (double)size;
        assert_true((double)n.memory_bytes >= exact && (double)n.memory_bytes <= exact * 17 / 16);
        assert_true(n.memory_bytes >= last);
        kinds += n.memory_bytes != last;
        last = n.memory_bytes;
    }
    assert_true(kinds > 50 && kinds < 16 * 8);
}

static void test_needs__name_gpus_as_people_do(void **state)
{
    MLO_UNUSED(state);
    static const char *const rows[][2] = {
        {"NVIDIA H100 80GB HBM3", "H100"},
        {"NVIDIA A100-SXM4-80GB", "A100"},
        {"Tesla T4", "T4"},
        {"NVIDIA GeForce RTX 4090", "RTX-4090"},
        {"rtx 4090", "RTX-4090"},
        {"NVIDIA H100 PCIe", "H100"},
        {"NVIDIA GH200 480GB", "GH200"},
        {"h200", "H200"},
        {"NVIDIA", ""},
    };
    char out[MLO_GPU_MODEL_SIZE], longest[200];
    for (size_t i = 0; i < MLO_COUNT(rows); i++)
        assert_string_equal(mlo_gpu_model(rows[i][0], out), rows[i][1]);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_true(strlen(mlo_gpu_model(longest, out)) < sizeof out);
}

static void test_recipe__mistakes_name_line_and_nearest_word(void **state)
{
    MLO_UNUSED(state);
    refused("name: a\nstepz: []\n", "r.yaml:2: unknown key 'stepz'", "did you mean 'steps'?");
    refused("name: a\ndata: {calibarte: x}\nsteps: [optimize]\n", "r.yaml:2: unknown key 'calibarte'",
            "did you mean 'calibrate'?");
    refused("name: a\nsteps:\n  - optimise: {}\n", "r.yaml:3: unknown step 'optimise'",
            "did you mean 'optimize'?");
    refused("name: a\ndata: {calibrate: p/d}\nsteps:\n  - quantize:\n      scheme: int8\n      calibratr: "
            "minmax\n",
            "r.yaml:6: ", "calibrator");
    refused("name: a\nsteps:\n  - benchmark: {batch: [0]}\n", "r.yaml:3: ", "");
    refused("name: a\nsteps: [quantize]\n", "r.yaml:2: the step 'quantize' needs a dataset",
            "data: {calibrate:");
    refused("name: a\ndata: {calibrate: p/d}\nsteps:\n  - quantize: {accuracy_drop: 0.5pt}\n",
            "r.yaml:4: the step 'quantize' needs a dataset for the role 'select'", "data: {select:");
    refused("name: a\ndata: {calibrate: p/d, select: p/t, evaluate: p/t}\nsteps:\n"
            "  - quantize: {accuracy_drop: 0.5pt}\n",
            "r.yaml:4: the step 'quantize' selects on 'p/t', which also evaluates", "samples of its own");
    refused("name: a\ntarget: cpu:avx513\nsteps: [optimize]\n", "r.yaml:2: unknown target",
            "did you mean 'cpu:avx512'?");
    refused("name: a\nsteps: [optimize]\nexpect: [\"top1 > \"]\n", "r.yaml:3: the condition", "");
    refused("name: a\nsteps: [optimize]\nexpect: [\"top1 > production\"]\n", "gate", "");
    refused("name: a\nname: b\nsteps: [optimize]\n", "r.yaml:2: the key 'name' stands twice", "");
    refused("name: Big Name\nsteps: [optimize]\n", "cannot be the name", "");
    refused("name: source\nsteps: [optimize]\n", "not 'source'", "");
    refused("steps: [optimize]\n", "'name' is missing", "name: int8-cpu");
    refused("name: a\nsteps: []\n", "at least one step", "");
    refused("name: a\ndata: {evaluate: p/d}\nsteps: [evaluate, optimize]\n", "stands after one that measures",
            "");
    refused("", "empty", "");
    refused("- a\n", "a recipe is a map", "");
    refused("name: [unclosed\n", "r.yaml:", "");
    refused("name: &x a\nsteps: [*x]\n", "anchors", "");
    refused("? [a]\n: b\n", "a key must be plain text", "");
}

static void test_recipe__select_is_needed_where_a_budget_is_set(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_recipe *r = parse("name: a\ndata: {calibrate: p/d, evaluate: p/t}\nsteps: [quantize]\n");
    assert_ok(mlo_recipe_check_data(r, &err));
    assert_ok(mlo_recipe_set(r, "quantize.accuracy_drop=0.5pt", &err));
    assert_int_equal(mlo_recipe_check_data(r, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "'select'"));
    assert_ok(mlo_recipe_set(r, "data.select=p/t", &err));
    assert_int_equal(mlo_recipe_check_data(r, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "also evaluates"));
    assert_ok(mlo_recipe_set(r, "data.select=p/s", &err));
    assert_ok(mlo_recipe_check_data(r, &err));
    mlo_recipe_free(r);
}

static void test_recipe__bounds_nesting_and_size(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_recipe *recipe;
    char deep[4000];
    memset(deep, '[', sizeof deep);
    assert_int_equal(mlo_recipe_parse(deep, sizeof deep, "r.yaml", &recipe, &err), MLO_EFORMAT);
    static char big[(1 << 18) + 2];
    memset(big, '#', sizeof big);
    assert_int_equal(mlo_recipe_parse(big, sizeof big, "r.yaml", &recipe, &err), MLO_ETOOBIG);
    for (size_t n = 0; n < 200; n++) { /* any prefix of a good recipe is refused or accepted, never a crash */
        size_t size;
        const char *text = mlo_recipe_builtin("int8-cpu", &size);
        if (mlo_recipe_parse(text, MLO_MIN(n * 3, size), "r.yaml", &recipe, &err) == MLO_OK)
            mlo_recipe_free(recipe);
    }
}

static void test_recipe__set_changes_one_option(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    size_t size;
    const char *text = mlo_recipe_builtin("int8-cpu", &size);
    struct mlo_recipe *r;
    assert_ok(mlo_recipe_parse(text, size, "int8-cpu", &r, &err));
    assert_ok(mlo_recipe_set(r, "quantize.calibrator=percentile", &err));
    assert_string_equal(mlo_json_str(r->steps[1].options, "calibrator", ""), "percentile");
    assert_ok(mlo_recipe_set(r, "data.calibrate=shop/images@2", &err));
    assert_string_equal(r->calibrate, "shop/images@2");
    assert_string_equal(mlo_json_str(json_object_get(r->canonical, "data"), "calibrate", ""),
                        "shop/images@2");
    assert_int_equal(mlo_recipe_set(r, "data.calibrat=x", &err), MLO_EINVAL);
    assert_string_equal(err.hint, "did you mean 'data.calibrate'?");
    assert_int_equal(mlo_recipe_set(r, "data.select=[a]", &err), MLO_EINVAL);
    assert_int_equal(mlo_recipe_set(r, "quantise.calibrator=minmax", &err), MLO_EINVAL);
    assert_string_equal(err.hint, "did you mean 'quantize'?");
    assert_int_equal(mlo_recipe_set(r, "quantize.calibrator=minimax", &err), MLO_EINVAL);
    assert_int_equal(mlo_recipe_set(r, "nonsense", &err), MLO_EINVAL);
    mlo_recipe_free(r);
}

/* Options that contradict each other are said when the recipe is read, or when all settings are made. */
static void test_recipe__options_of_a_step_fit_each_other(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_recipe *r = NULL;
    const char *text = "name: a\nsteps:\n  - sparsify: {pattern: \"2:4\", sparsity: 60%}\n";
    assert_int_equal(mlo_recipe_parse(text, strlen(text), "a", &r, &err), MLO_EINVAL);
    assert_contains(err.message, "2:4 makes half of the weights zero");
    r = parse("name: a\nsteps:\n  - sparsify: {pattern: \"2:4\"}\n");
    assert_ok(mlo_recipe_set(r, "sparsify.sparsity=60%", &err));
    assert_int_equal(mlo_recipe_check_data(r, &err), MLO_EINVAL);
    assert_contains(err.message, "2:4 makes half of the weights zero");
    assert_ok(mlo_recipe_set(r, "sparsify.pattern=unstructured", &err));
    assert_ok(mlo_recipe_check_data(r, &err));
    mlo_recipe_free(r);
}

static void test_recipe__expectations_read_the_variants_bounds(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *results;
    struct mlo_recipe *r =
        parse("name: a\ndata: {evaluate: p/d}\nsteps: [evaluate, benchmark]\n"
              "expect: [\"top1 >= source - 0.5pt\", \"latency.p50[batch=1,threads=1] <= source\"]\n");
    static const char TEXT[] =
        "[{\"subject\":\"source\",\"metric\":\"top1\",\"params\":{},\"value\":0.1,\"low\":0.1,\"high\":0.1},"
        "{\"subject\":\"variant\",\"metric\":\"top1\",\"params\":{},\"value\":0.9,\"low\":0.89,\"high\":0.91,"
        " \"against\":{\"subject\":\"source\",\"difference\":{\"value\":-0.001,\"low\":-0.003,\"high\":0.001}"
        "}},"
        "{\"subject\":\"variant\",\"metric\":\"latency.p50\",\"params\":{\"batch\":8,\"threads\":1},"
        "\"value\":9,\"low\":9,"
        "\"high\":9,\"against\":{\"subject\":\"source\",\"ratio\":{\"value\":0.1,\"low\":0.1,\"high\":0.1}}},"
        "{\"subject\":\"variant\",\"metric\":\"latency.p50\",\"params\":{\"batch\":1,\"threads\":1},"
        "\"value\":9,\"low\":9,"
        "\"high\":9,\"against\":{\"subject\":\"source\",\"ratio\":{\"value\":0.98,\"low\":0.9,\"high\":1.02}}"
        "}]";
    json_t *o;
    assert_ok(mlo_json_parse(TEXT, strlen(TEXT), "test", &o, &err));
    assert_int_equal(mlo_recipe_expect(r, o, &results, &err), MLO_EEXPECT);
    assert_true(json_is_true(json_object_get(json_array_get(results, 0), "holds")));
    assert_true(json_is_false(json_object_get(json_array_get(results, 1), "holds")));
    assert_contains(mlo_json_str(json_array_get(results, 1), "reason", ""), "1.02");
    json_decref(results);
    json_t *ratio = json_object_get(json_object_get(json_array_get(o, 3), "against"), "ratio");
    json_object_set_new(ratio, "high", json_real(0.99));
    assert_ok(mlo_recipe_expect(r, o, &results, &err));
    json_decref(results);
    json_decref(o);
    mlo_recipe_free(r);
}

/* A command that is given files needs no names for them; a run does. */
static void test_recipe__of_files_names_no_datasets(void **state)
{
    static const char text[] = "name: a\nsteps: [quantize, evaluate]\n";
    struct mlo_error err = {0};
    struct mlo_recipe *recipe = NULL;
    MLO_UNUSED(state);
    assert_int_not_equal(mlo_recipe_parse(text, strlen(text), "r.yaml", &recipe, &err), MLO_OK);
    assert_int_equal(mlo_recipe_parse_of_files(text, strlen(text), "r.yaml", &recipe, &err), MLO_OK);
    assert_null(recipe->calibrate);
    assert_int_equal(mlo_recipe_set(recipe, "quantize.accuracy_drop=\"0.5pt\"", &err), MLO_OK);
    assert_int_not_equal(mlo_recipe_check_data(recipe, &err), MLO_OK);
    assert_non_null(strstr(err.message, "needs a dataset"));
    mlo_recipe_free(recipe);
}

static void test_steps__table_is_complete(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    assert_ok(mlo_step_table_check(&err));
}

static void test_recipe__a_model_stands_before_the_metrics(void **state)
{
    MLO_UNUSED(state);
    static const char TEXT[] = "name: boxes\ntarget: any\ndata: {evaluate: p/t}\npostprocess: p/decode@2\n"
                               "steps:\n  - evaluate: {metrics: [map50]}\n",
                      UNREAD[] =
                          "name: boxes\ntarget: any\npostprocess: p/decode@2\nsteps:\n  - optimize: {}\n",
                      LIST[] = "name: boxes\ntarget: any\ndata: {evaluate: p/t}\npostprocess: [p/decode]\n"
                               "steps:\n  - evaluate: {}\n";
    struct mlo_error err = {0};
    struct mlo_recipe *r;
    struct mlo_digest with, without;
    assert_ok(mlo_recipe_parse(TEXT, sizeof TEXT - 1, "boxes.yaml", &r, &err));
    assert_string_equal(r->postprocess, "p/decode@2");
    assert_string_equal(mlo_json_str(r->canonical, "postprocess", ""), "p/decode@2");
    assert_ok(mlo_json_digest(r->canonical, &with, &err));
    /* what the queue keeps is read back alike */
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_recipe *again;
    mlo_json_canonical(r->canonical, &text);
    assert_ok(mlo_recipe_parse(mlo_buf_str(&text), text.len, "again", &again, &err));
    assert_string_equal(again->postprocess, "p/decode@2");
    mlo_recipe_free(again);
    mlo_buf_clear(&text);
    assert_ok(mlo_recipe_set(r, "postprocess=p/decode@3", &err));
    assert_string_equal(mlo_json_str(r->canonical, "postprocess", ""), "p/decode@3");
    assert_ok(mlo_recipe_set(r, "postprocess=none", &err));
    assert_null(json_object_get(r->canonical, "postprocess"));
    assert_ok(mlo_json_digest(r->canonical, &without, &err));
    assert_false(mlo_digest_eq(&with, &without));
    assert_int_equal(mlo_recipe_set(r, "postprocess=", &err), MLO_EINVAL);
    mlo_recipe_free(r);
    assert_int_equal(mlo_recipe_parse(UNREAD, sizeof UNREAD - 1, "boxes.yaml", &r, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "boxes.yaml:3: 'postprocess' names 'p/decode@2', and no step"));
    assert_int_equal(mlo_recipe_parse(LIST, sizeof LIST - 1, "boxes.yaml", &r, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "'postprocess' must be a text"));
    /* one that is set on a recipe where nothing reads it */
    const char *plain = "name: a\ntarget: any\nsteps:\n  - optimize: {}\n";
    assert_ok(mlo_recipe_parse(plain, strlen(plain), "a.yaml", &r, &err));
    assert_ok(mlo_recipe_set(r, "postprocess=p/decode", &err));
    assert_int_equal(mlo_recipe_check_data(r, &err), MLO_EINVAL);
    mlo_recipe_free(r);
}

/* It is an input of a step that selects by a metric, and of no other that derives. */
static void test_steps__derivation_names_what_selects_by_a_metric(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_digest model, data, post, key[2];
    const struct mlo_step *q = mlo_step_find("quantize");
    const char *const drops[] = {"none", "0.5pt"};
    mlo_digest_of("model", 5, &model);
    mlo_digest_of("data", 4, &data);
    mlo_digest_of("post", 4, &post);
    for (int i = 0; i < 2; i++) {
        json_t *given = json_pack("{s:s}", "accuracy_drop", drops[i]), *options, *d;
        assert_ok(mlo_options_resolve(q->options, given, &options, &err));
        for (int k = 0; k < 2; k++) {
            assert_ok(
                mlo_step_derivation(q, options, &model, &data, &data, k ? &post : NULL, NULL, &d, &err));
            assert_ok(mlo_json_digest(d, &key[k], &err));
            json_decref(d);
        }
        assert_int_equal(mlo_digest_eq(&key[0], &key[1]), i == 0);
        json_decref(given);
        json_decref(options);
    }
}

static void test_steps__derivation_names_all_that_determines_the_bytes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_digest model, data, key[4];
    json_t *d, *options;
    const struct mlo_step *q = mlo_step_find("quantize");
    mlo_digest_of("model", 5, &model);
    mlo_digest_of("data", 4, &data);
    assert_ok(mlo_options_resolve(q->options, NULL, &options, &err));
    assert_ok(mlo_step_derivation(q, options, &model, &data, NULL, NULL, NULL, &d, &err));
    assert_ok(mlo_json_digest(d, &key[0], &err));
    assert_string_equal(mlo_json_str(d, "numerics", ""), MLO_NUMERICS_ID);
    assert_true(mlo_json_i64(json_object_get(d, "passes"), "quantize", 0) >= 1);
    json_decref(d);
    assert_ok(mlo_step_derivation(q, options, &data, &data, NULL, NULL, NULL, &d, &err));
    assert_ok(mlo_json_digest(d, &key[1], &err));
    json_decref(d);
    assert_ok(mlo_step_derivation(q, options, &model, &model, NULL, NULL, NULL, &d, &err));
    assert_ok(mlo_json_digest(d, &key[2], &err));
    json_decref(d);
    json_object_set_new(options, "calibrator", json_string("percentile"));
    assert_ok(mlo_step_derivation(q, options, &model, &data, NULL, NULL, NULL, &d, &err));
    assert_ok(mlo_json_digest(d, &key[3], &err));
    json_decref(d);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_false(mlo_digest_eq(&key[i], &key[j]));
    assert_int_equal(
        mlo_step_derivation(mlo_step_find("evaluate"), options, &model, NULL, NULL, NULL, NULL, &d, &err),
        MLO_EINTERNAL);
    json_decref(options);
    /* optimize reads no data: its key does not depend on any */
    const struct mlo_step *o = mlo_step_find("optimize");
    assert_ok(mlo_options_resolve(o->options, NULL, &options, &err));
    assert_ok(mlo_step_derivation(o, options, &model, &data, NULL, NULL, NULL, &d, &err));
    assert_ok(mlo_json_digest(d, &key[0], &err));
    json_decref(d);
    assert_ok(mlo_step_derivation(o, options, &model, NULL, NULL, NULL, NULL, &d, &err));
    assert_ok(mlo_json_digest(d, &key[1], &err));
    json_decref(d);
    assert_true(mlo_digest_eq(&key[0], &key[1]));
    json_decref(options);
}

/* A step that makes plans has the recipe's target where that is a GPU's, or its own. */
static void test_recipe__compiles_for_a_gpu(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_recipe *r =
        parse("name: a\ntarget: cuda:sm100\nsteps:\n  - compile: {}\n  - tune: {target: cuda:sm90}\n");
    const struct mlo_step *compile = mlo_step_find("compile"), *tune = mlo_step_find("tune");
    assert_string_equal(r->target, "cuda:sm100");
    assert_string_equal(mlo_json_str(r->steps[0].options, "target", ""), "cuda:sm100");
    assert_string_equal(mlo_json_str(r->steps[1].options, "target", ""), "cuda:sm90");
    /* who compiles needs no GPU, who measures does */
    assert_string_equal(compile->offer(r->steps[0].options, r->target), MLO_TARGET_COMPILE_CUDA);
    assert_string_equal(tune->offer(r->steps[1].options, r->target), "cuda:sm90:exact");
    assert_ok(mlo_recipe_set(r, "compile.target=cuda:sm80", &err));
    assert_string_equal(mlo_json_str(r->steps[0].options, "target", ""), "cuda:sm80");
    assert_int_equal(mlo_recipe_set(r, "compile.target=cpu:avx2", &err), MLO_EINVAL);
    mlo_recipe_free(r);
    r = parse("name: a\ntarget: cpu:avx2\nsteps:\n  - compile: {}\n  - benchmark: {engine: cuda}\n");
    assert_string_equal(mlo_json_str(r->steps[0].options, "target", ""), "recipe");
    assert_null(compile->offer(r->steps[0].options, r->target));
    const struct mlo_step *bench = mlo_step_find("benchmark");
    assert_string_equal(bench->offer(r->steps[1].options, r->target), "cuda");
    assert_null(bench->offer(r->steps[1].options, "cuda:sm90"));
    assert_null(bench->offer(r->steps[0].options, "any"));
    mlo_recipe_free(r);
    refused("name: a\ntarget: cuda:sm9\nsteps:\n  - compile: {}\n", "unknown target 'cuda:sm9'",
            "did you mean 'cuda:sm");
    refused("name: a\nsteps:\n  - compile: {target: gpu}\n",
            "r.yaml:3: plans cannot be made for the target 'gpu'", "cuda:sm90");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipe__builtin_ones_parse),
        cmocka_unit_test(test_recipe__resolves_every_option),
        cmocka_unit_test(test_recipe__written_differently_is_the_same_recipe),
        cmocka_unit_test(test_recipe__says_what_its_jobs_need),
        cmocka_unit_test(test_recipe__compiles_for_a_gpu),
        cmocka_unit_test(test_recipe__needs_that_mean_nothing_are_refused),
        cmocka_unit_test(test_needs__estimates_every_step),
        cmocka_unit_test(test_needs__estimates_are_of_few_sizes),
        cmocka_unit_test(test_needs__name_gpus_as_people_do),
        cmocka_unit_test(test_recipe__mistakes_name_line_and_nearest_word),
        cmocka_unit_test(test_recipe__select_is_needed_where_a_budget_is_set),
        cmocka_unit_test(test_recipe__bounds_nesting_and_size),
        cmocka_unit_test(test_recipe__set_changes_one_option),
        cmocka_unit_test(test_recipe__options_of_a_step_fit_each_other),
        cmocka_unit_test(test_recipe__expectations_read_the_variants_bounds),
        cmocka_unit_test(test_recipe__of_files_names_no_datasets),
        cmocka_unit_test(test_steps__table_is_complete),
        cmocka_unit_test(test_recipe__a_model_stands_before_the_metrics),
        cmocka_unit_test(test_steps__derivation_names_what_selects_by_a_metric),
        cmocka_unit_test(test_steps__derivation_names_all_that_determines_the_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
