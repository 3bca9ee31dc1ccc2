#include <stdio.h>
#include <string.h>

#include "base/yaml.h"
#include "pipeline/steps/search.h"
#include "pipeline/steps/step_impl.h"

static const char *const TOP_KEYS[] = {"name",   "target",      "data",  "postprocess", "steps",
                                       "expect", "description", "needs", "timeout"};
static const char *const DATA_KEYS[] = {"calibrate", "select", "evaluate"};

enum { MAX_STEPS = 64, MAX_EXPECT = 64, MAX_TEXT = 1 << 18 };

struct reader {
    struct mlo_recipe *recipe;
    const char *name; /* of the file, for errors */
    struct mlo_error *err;
    bool of_files; /* roles need no datasets */
};

static enum mlo_status bad(struct reader *r, int line, const char *fmt, ...) MLO_PRINTF(3, 4);
static enum mlo_status bad(struct reader *r, int line, const char *fmt, ...)
{
    char what[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    enum mlo_status status = mlo_error_set(r->err, MLO_EINVAL, "%.80s:%d: %s", r->name, line, what);
    mlo_error_where(r->err, "%s:%d", r->name, line);
    return status;
}

/* Puts file and line in front of an error that an inner function made. */
static enum mlo_status at_line(struct reader *r, enum mlo_status status, int line)
{
    if (status != MLO_OK && r->err) {
        mlo_error_prefix(r->err, "%.80s:%d", r->name, line);
        snprintf(r->err->where, sizeof r->err->where, "%.200s:%d", r->name, line);
    }
    return status;
}

static enum mlo_status unknown(struct reader *r, int line, const char *kind, const char *word,
                               const char *const *known, size_t count)
{
    enum mlo_status status = bad(r, line, "unknown %s '%.60s'", kind, word);
    if (!mlo_error_suggest(r->err, word, known, count)) {
        struct mlo_buf list = MLO_BUF_INIT;
        mlo_buf_names(&list, known, count);
        mlo_error_hint(r->err, "known are: %s", mlo_buf_str(&list));
        mlo_buf_clear(&list);
    }
    return status;
}

static enum mlo_status check_keys(struct reader *r, const struct mlo_yaml *map, const char *const *known,
                                  size_t count)
{
    for (const struct mlo_yaml *m = map->first; m; m = m->next)
        if (!mlo_str_among(m->key, known, count))
            return unknown(r, m->key_line, "key", m->key, known, count);
    return MLO_OK;
}

static enum mlo_status read_text(struct reader *r, const struct mlo_yaml *node, const char **out)
{
    if (node->kind != MLO_YAML_SCALAR || node->text[0] == '\0')
        return bad(r, node->line, "'%s' must be a text", node->key);
    *out = node->text;
    return MLO_OK;
}

/* A name that becomes a variant's name, a path segment and a file name. */
static bool valid_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 64 && name[0] != '-' && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == n;
}

/* One of the keys that say what a job needs, of the recipe or of a step. */
static enum mlo_status read_need(struct reader *r, const struct mlo_yaml *node, const char *path,
                                 struct mlo_needs *out)
{
    json_t *value = mlo_yaml_to_json(node);
    enum mlo_status status =
        value ? mlo_needs_set(out, node->key, path, value, r->err) : mlo_error_nomem(r->err);
    json_decref(value);
    return at_line(r, status, node->key_line);
}

/* "needs" and "timeout" of a map; `at` is "" for the recipe's, "steps[1]." for a step's. */
static enum mlo_status read_needs(struct reader *r, const struct mlo_yaml *map, const char *at,
                                  struct mlo_needs *out)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_yaml *needs = mlo_yaml_get(map, "needs"), *timeout = mlo_yaml_get(map, "timeout");
    char path[96];
    *out = MLO_NEEDS_INIT;
    snprintf(path, sizeof path, "%stimeout", at);
    if (timeout)
        MLO_TRY(read_need(r, timeout, path, out));
    if (!needs)
        return MLO_OK;
    if (needs->kind != MLO_YAML_MAP) {
        status = bad(r, needs->line, "'%sneeds' must say what a job needs", at);
        mlo_error_hint(r->err, "write for example \"needs: {memory: 8GB, disk: 20GB, gpus: 1, gpu: H100}\"");
        goto out;
    }
    size_t count;
    const char *const *known = mlo_needs_keys(&count);
    MLO_TRY(check_keys(r, needs, known, count));
    for (const struct mlo_yaml *m = needs->first; m; m = m->next) {
        snprintf(path, sizeof path, "%sneeds.%.40s", at, m->key);
        MLO_TRY(read_need(r, m, path, out));
    }
    snprintf(path, sizeof path, "%sneeds", at);
    status = at_line(r, mlo_needs_check(out, path, r->err), needs->key_line);
out:
    return status;
}

static enum mlo_status read_header(struct reader *r, const struct mlo_yaml *root)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_yaml *node = mlo_yaml_get(root, "name");
    if (!node) {
        status = bad(r, root->line, "the key 'name' is missing");
        mlo_error_hint(r->err, "begin the recipe with a line such as \"name: int8-cpu\"");
        goto out;
    }
    MLO_TRY(read_text(r, node, &r->recipe->name));
    if (!valid_name(r->recipe->name) || strcmp(r->recipe->name, "source") == 0) {
        status = bad(
            r, node->line,
            "'%.64s' cannot be the name of a recipe: up to 64 lowercase letters, digits, '-', '_' or '.', "
            "and not 'source'",
            r->recipe->name);
        goto out;
    }
    r->recipe->target = "any";
    if ((node = mlo_yaml_get(root, "target"))) {
        MLO_TRY(read_text(r, node, &r->recipe->target));
        size_t count;
        const char *const *known = mlo_targets(&count);
        if (!mlo_str_among(r->recipe->target, known, count) && !mlo_cuda_target_sm(r->recipe->target)) {
            status = unknown(r, node->line, "target", r->recipe->target, known, count);
            goto out;
        }
    }
    const struct mlo_yaml *data = mlo_yaml_get(root, "data");
    if (data) {
        if (data->kind != MLO_YAML_MAP) {
            status = bad(r, data->line,
                         "'data' must map roles to datasets, such as {calibrate: fashion/calibration}");
            goto out;
        }
        MLO_TRY(check_keys(r, data, DATA_KEYS, MLO_COUNT(DATA_KEYS)));
        const char **slots[] = {&r->recipe->calibrate, &r->recipe->select, &r->recipe->evaluate};
        for (size_t i = 0; i < MLO_COUNT(DATA_KEYS); i++)
            if ((node = mlo_yaml_get(data, DATA_KEYS[i])))
                MLO_TRY(read_text(r, node, slots[i]));
    }
    if ((node = mlo_yaml_get(root, "postprocess")))
        MLO_TRY(read_text(r, node, &r->recipe->postprocess));
    MLO_TRY(read_needs(r, root, "", &r->recipe->needs));
out:
    return status;
}

static enum mlo_status unknown_step(struct reader *r, int line, const char *word)
{
    size_t count;
    const struct mlo_step *const *table = mlo_step_table(&count);
    const char *names[MAX_STEPS];
    count = MLO_MIN(count, (size_t)MAX_STEPS);
    for (size_t i = 0; i < count; i++)
        names[i] = table[i]->name;
    return unknown(r, line, "step", word, names, count);
}

/* The line of the option that an error's place names ("option 'calibrator'"); else the step's. */
static int option_line(const struct mlo_yaml *options, const struct mlo_error *err, int fallback)
{
    if (!err || !options || options->kind != MLO_YAML_MAP)
        return fallback;
    for (const struct mlo_yaml *m = options->first; m; m = m->next) {
        char quoted[128];
        snprintf(quoted, sizeof quoted, "'%.100s'", m->key);
        if (strstr(err->where, quoted))
            return m->key_line;
    }
    return fallback;
}

static enum mlo_status needs_data(struct reader *r, const struct mlo_recipe_step *item)
{
    const struct mlo_step *step = mlo_step_find(item->name);
    int line = item->line;
    const struct {
        bool needed;
        const char *dataset, *role;
    } rows[] = {
        {step->needs_calibrate, r->recipe->calibrate, "calibrate"},
        {mlo_step_reads_select(step, item->options), r->recipe->select, "select"},
        {step->needs_evaluate, r->recipe->evaluate, "evaluate"},
    };
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        if (rows[i].needed && !rows[i].dataset) {
            enum mlo_status status =
                bad(r, line, "the step '%s' needs a dataset for the role '%s', and the recipe names none",
                    step->name, rows[i].role);
            mlo_error_hint(r->err, "add to the recipe: data: {%s: PROJECT/DATASET}", rows[i].role);
            return status;
        }
    }
    return MLO_OK;
}

/* A step that compares with a teacher names it; one recipe has one. */
static enum mlo_status names_teacher(struct reader *r, const struct mlo_recipe_step *item)
{
    const char *teacher = mlo_json_str(item->options, "teacher", "");
    if (!mlo_step_find(item->name)->reads_teacher)
        return MLO_OK;
    if (!*teacher) {
        enum mlo_status status =
            bad(r, item->line, "the step '%s' compares with a teacher, and names none", item->name);
        mlo_error_hint(r->err, "write for example \"%s: {teacher: MODEL@3/source}\"", item->name);
        return status;
    }
    for (const struct mlo_recipe_step *other = r->recipe->steps; other < item; other++)
        if (mlo_step_find(other->name)->reads_teacher &&
            strcmp(mlo_json_str(other->options, "teacher", ""), teacher) != 0)
            return bad(r, item->line, "the teachers '%.80s' and '%.80s' stand in one recipe, which has one",
                       mlo_json_str(other->options, "teacher", ""), teacher);
    return MLO_OK;
}

/* What is chosen on data looks better on that data than it is. */
static enum mlo_status select_apart(struct reader *r, const struct mlo_recipe_step *item)
{
    const struct mlo_recipe *recipe = r->recipe;
    if (!recipe->select || !recipe->evaluate || strcmp(recipe->select, recipe->evaluate) != 0 ||
        !mlo_step_reads_select(mlo_step_find(item->name), item->options))
        return MLO_OK;
    enum mlo_status status = bad(r, item->line, "the step '%s' selects on '%.80s', which also evaluates",
                                 item->name, recipe->select);
    mlo_error_hint(r->err, "give the role select samples of its own: what is chosen on data cannot be judged "
                           "on it");
    return status;
}

/* A postprocessing model that nothing runs is a mistake. */
static enum mlo_status judges(struct reader *r, int line)
{
    for (size_t i = 0; i < r->recipe->step_count; i++) {
        const struct mlo_recipe_step *item = &r->recipe->steps[i];
        if (mlo_step_reads_postprocess(mlo_step_find(item->name), item->options))
            return MLO_OK;
    }
    if (!r->recipe->postprocess)
        return MLO_OK;
    enum mlo_status status =
        bad(r, line, "'postprocess' names '%.80s', and no step of the recipe makes a metric of outputs",
            r->recipe->postprocess);
    mlo_error_hint(r->err, "add a step such as \"evaluate: {metrics: [top1]}\", or leave 'postprocess' out");
    return status;
}

/* What a search finds is RECIPE-CANDIDATE, which must be a variant's name. */
static enum mlo_status names_fit(struct reader *r, const struct mlo_recipe_step *item)
{
    json_t *space = NULL, *one;
    size_t i;
    enum mlo_status status = mlo_search_space(item->options, &space, r->err);
    json_array_foreach(space, i, one)
    {
        const char *name = mlo_json_str(one, "name", "");
        size_t length = strlen(r->recipe->name) + 1 + strlen(name);
        if (status != MLO_OK || length <= MLO_SEARCH_VARIANT_MAX)
            continue;
        status = bad(r, item->line, "the variant's name '%.100s-%.96s' has %zu characters, of %d at most",
                     r->recipe->name, name, length, MLO_SEARCH_VARIANT_MAX);
        mlo_error_hint(r->err, "give the recipe a shorter name");
    }
    json_decref(space);
    return status;
}

/* A search plans its jobs itself; its goal is what a recipe's expectations are. */
static enum mlo_status alone(struct reader *r)
{
    for (size_t i = 0; i < r->recipe->step_count; i++) {
        const struct mlo_recipe_step *item = &r->recipe->steps[i];
        if (!mlo_step_find(item->name)->reads_run)
            continue;
        if (r->recipe->step_count == 1 && !r->recipe->expect_count)
            return names_fit(r, item);
        enum mlo_status status =
            bad(r, item->line, "the step '%s' stands alone in a recipe without 'expect'", item->name);
        mlo_error_hint(r->err,
                       "what its candidates are made of is in its knobs, what they must keep in 'goal'");
        return status;
    }
    return MLO_OK;
}

enum mlo_status mlo_recipe_check_data(const struct mlo_recipe *recipe, struct mlo_error *err)
{
    struct reader r = {.recipe = (struct mlo_recipe *)recipe, .name = recipe->name, .err = err};
    enum mlo_status judged = judges(&r, recipe->step_count ? recipe->steps[0].line : 1);
    if (judged == MLO_OK) /* again: options are set after it was parsed */
        judged = alone(&r);
    if (judged != MLO_OK)
        return judged;
    for (size_t i = 0; i < recipe->step_count; i++) {
        const struct mlo_step *row = mlo_step_find(recipe->steps[i].name);
        enum mlo_status status = needs_data(&r, &recipe->steps[i]);
        if (status == MLO_OK && row && row->check)
            status = row->check(recipe->steps[i].options, err);
        if (status == MLO_OK)
            status = select_apart(&r, &recipe->steps[i]);
        if (status == MLO_OK)
            status = names_teacher(&r, &recipe->steps[i]);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

/* The member of a step's map that is the step: all but what it needs. NULL unless it is one. */
static const struct mlo_yaml *step_member(const struct mlo_yaml *item)
{
    const struct mlo_yaml *step = NULL;
    for (const struct mlo_yaml *m = item->first; m; m = m->next) {
        if (strcmp(m->key, "needs") == 0 || strcmp(m->key, "timeout") == 0)
            continue;
        if (step)
            return NULL;
        step = m;
    }
    return step;
}

static enum mlo_status read_step(struct reader *r, const struct mlo_yaml *item)
{
    enum mlo_status status = MLO_OK;
    const char *name;
    const struct mlo_yaml *options = NULL;
    json_t *given = NULL;
    if (item->kind == MLO_YAML_SCALAR) {
        name = item->text;
    } else if (item->kind == MLO_YAML_MAP && (options = step_member(item))) {
        name = options->key;
    } else {
        status = bad(r, item->line, "a step is written \"- name: {options}\"");
        mlo_error_hint(r->err, "beside it may stand \"needs: {memory: 8GB}\" and \"timeout: 2h\"");
        return status;
    }
    const struct mlo_step *step = mlo_step_find(name);
    if (!step)
        return unknown_step(r, item->line, name);
    if (options) {
        given = mlo_yaml_to_json(options);
        if (!given)
            return mlo_error_nomem(r->err);
        if (json_is_null(given)) {
            json_decref(given);
            given = NULL;
        } else if (!json_is_object(given)) {
            status = bad(r, options->line, "the options of '%s' are written {option: value, …}", name);
            goto out;
        }
    }
    struct mlo_recipe_step *slot = &r->recipe->steps[r->recipe->step_count];
    status = mlo_options_resolve(step->options, given, &slot->options, r->err);
    if (status == MLO_OK && step->check && (status = step->check(slot->options, r->err)) != MLO_OK) {
        json_decref(slot->options);
        slot->options = NULL;
    }
    if (status != MLO_OK) {
        at_line(r, status, option_line(options, r->err, item->line));
        goto out;
    }
    char at[32];
    snprintf(at, sizeof at, "steps[%zu].", r->recipe->step_count);
    slot->name = step->name;
    slot->line = item->line;
    r->recipe->step_count++;
    MLO_TRY(read_needs(r, item, at, &slot->needs));
    if (!r->of_files)
        MLO_TRY(needs_data(r, slot));
    MLO_TRY(select_apart(r, slot));
out:
    json_decref(given);
    return status;
}

static enum mlo_status read_steps(struct reader *r, const struct mlo_yaml *root)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_yaml *steps = mlo_yaml_get(root, "steps");
    if (!steps || steps->kind != MLO_YAML_LIST || steps->count == 0) {
        status = bad(r, steps ? steps->line : root->line, "'steps' must list at least one step");
        mlo_error_hint(r->err, "write for example \"steps: [{optimize: {}}]\"");
        return status;
    }
    if (steps->count > MAX_STEPS)
        return bad(r, steps->line, "at most %d steps", MAX_STEPS);
    r->recipe->steps = mlo_arena_calloc(r->recipe->arena, steps->count, sizeof *r->recipe->steps);
    if (!r->recipe->steps)
        return mlo_error_nomem(r->err);
    bool observed = false;
    for (const struct mlo_yaml *item = steps->first; item; item = item->next) {
        MLO_TRY(read_step(r, item));
        const struct mlo_recipe_step *last = &r->recipe->steps[r->recipe->step_count - 1];
        bool observes = mlo_step_find(last->name)->kind == MLO_STEP_OBSERVE;
        if (observed && !observes) {
            status = bad(r, item->line, "the step '%s' makes an artifact and stands after one that measures",
                         last->name);
            mlo_error_hint(r->err, "put the steps that make the variant first, then those that measure it");
            goto out;
        }
        observed = observes;
    }
out:
    return status;
}

/* A step that makes plans has the recipe's target, where it names none and that is a GPU's. */
static enum mlo_status settle_target(const struct mlo_recipe *recipe, const struct mlo_recipe_step *step,
                                     struct mlo_error *err)
{
    bool makes_plans = mlo_step_find(step->name)->makes_plans; /* else it is another option of that name */
    const char *target = makes_plans ? mlo_json_str(step->options, "target", NULL) : NULL;
    enum mlo_status status = target ? mlo_step_check_target(target, err) : MLO_OK;
    if (status != MLO_OK || !target || mlo_cuda_target_sm(target) || !mlo_cuda_target_sm(recipe->target))
        return status;
    return json_object_set_new(step->options, "target", json_string(recipe->target)) == 0
               ? MLO_OK
               : mlo_error_nomem(err);
}

static enum mlo_status read_expectations(struct reader *r, const struct mlo_yaml *root)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_yaml *list = mlo_yaml_get(root, "expect");
    if (!list)
        return MLO_OK;
    if (list->kind != MLO_YAML_LIST || list->count > MAX_EXPECT)
        return bad(r, list->line, "'expect' must be a list of at most %d conditions", MAX_EXPECT);
    r->recipe->expect = mlo_arena_calloc(r->recipe->arena, list->count, sizeof *r->recipe->expect);
    if (!r->recipe->expect)
        return mlo_error_nomem(r->err);
    for (const struct mlo_yaml *item = list->first; item; item = item->next) {
        if (item->kind != MLO_YAML_SCALAR)
            return bad(r, item->line, "a condition is a text, such as \"top1 >= source - 0.5pt\"");
        struct mlo_condition *c = &r->recipe->expect[r->recipe->expect_count];
        status = at_line(r, mlo_condition_parse(item->text, c, r->err), item->line);
        if (status != MLO_OK)
            goto out;
        if (c->base[0] && strcmp(c->base, "source") != 0) {
            status =
                bad(r, item->line,
                    "an expectation compares with 'source'; '%s' belongs into a promotion gate", c->base);
            goto out;
        }
        r->recipe->expect_count++;
    }
out:
    return status;
}

/* Adds what was said of needs to the recipe's or a step's object. */
static bool put_needs(json_t *object, const struct mlo_needs *needs)
{
    json_t *said = mlo_needs_json(needs);
    bool ok = said && (json_object_size(said) == 0 || json_object_set(object, "needs", said) == 0);
    json_decref(said);
    return ok &&
           (!needs->timeout_s || json_object_set_new(object, "timeout", json_integer(needs->timeout_s)) == 0);
}

static enum mlo_status make_canonical(struct mlo_recipe *recipe, struct mlo_error *err)
{
    bool whole = true;
    json_t *data = json_object(), *steps = json_array(), *expect = json_array();
    const char *const datasets[] = {recipe->calibrate, recipe->select, recipe->evaluate};
    for (size_t i = 0; i < MLO_COUNT(DATA_KEYS); i++)
        if (datasets[i])
            json_object_set_new(data, DATA_KEYS[i], json_string(datasets[i]));
    for (size_t i = 0; i < recipe->step_count; i++) {
        json_t *step = json_pack("{s:O}", recipe->steps[i].name, recipe->steps[i].options);
        whole = whole && step && put_needs(step, &recipe->steps[i].needs);
        json_array_append_new(steps, step);
    }
    for (size_t i = 0; i < recipe->expect_count; i++)
        json_array_append_new(expect, json_string(recipe->expect[i].text));
    json_t *canonical = json_pack("{s:s,s:s,s:o,s:o,s:o}", "name", recipe->name, "target", recipe->target,
                                  "data", data, "steps", steps, "expect", expect);
    whole = whole && canonical && put_needs(canonical, &recipe->needs);
    if (!whole || (recipe->postprocess &&
                   json_object_set_new(canonical, "postprocess", json_string(recipe->postprocess)) != 0)) {
        json_decref(canonical);
        return mlo_error_nomem(err);
    }
    json_decref(recipe->canonical);
    recipe->canonical = canonical;
    return MLO_OK;
}

static enum mlo_status parse(const char *text, size_t size, const char *name, bool of_files,
                             struct mlo_recipe **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_yaml *root;
    struct mlo_recipe *recipe = NULL;
    struct mlo_arena *arena = mlo_arena_new();
    *out = NULL;
    if (!arena || !(recipe = mlo_arena_alloc(arena, sizeof *recipe))) {
        mlo_arena_free(arena);
        return mlo_error_nomem(err);
    }
    recipe->arena = arena;
    struct reader r = {recipe, mlo_arena_strdup(arena, name), err, of_files};
    if (size > MAX_TEXT) {
        status =
            mlo_error_set(err, MLO_ETOOBIG, "%s has %zu bytes; a recipe may have %d", name, size, MAX_TEXT);
        goto out;
    }
    MLO_TRY(mlo_yaml_parse(arena, text, size, r.name, &root, err));
    if (root->kind != MLO_YAML_MAP) {
        status =
            bad(&r, root->line, "a recipe is a map of keys such as name, target, data, steps and expect");
        goto out;
    }
    MLO_TRY(check_keys(&r, root, TOP_KEYS, MLO_COUNT(TOP_KEYS)));
    MLO_TRY(read_header(&r, root));
    MLO_TRY(read_steps(&r, root));
    for (size_t i = 0; i < recipe->step_count; i++) {
        status = at_line(&r, settle_target(recipe, &recipe->steps[i], err), recipe->steps[i].line);
        if (status != MLO_OK)
            goto out;
    }
    const struct mlo_yaml *post = mlo_yaml_get(root, "postprocess");
    MLO_TRY(judges(&r, post ? post->key_line : 1));
    MLO_TRY(read_expectations(&r, root));
    MLO_TRY(alone(&r));
    MLO_TRY(make_canonical(recipe, err));
    *out = recipe;
    recipe = NULL;
out:
    mlo_recipe_free(recipe);
    return status;
}

enum mlo_status mlo_recipe_parse(const char *text, size_t size, const char *name, struct mlo_recipe **out,
                                 struct mlo_error *err)
{
    return parse(text, size, name, false, out, err);
}

enum mlo_status mlo_recipe_parse_of_files(const char *text, size_t size, const char *name,
                                          struct mlo_recipe **out, struct mlo_error *err)
{
    return parse(text, size, name, true, out, err);
}

void mlo_recipe_free(struct mlo_recipe *recipe)
{
    if (!recipe)
        return;
    for (size_t i = 0; i < recipe->step_count; i++)
        json_decref(recipe->steps[i].options);
    json_decref(recipe->canonical);
    mlo_arena_free(recipe->arena);
}

/* data.ROLE=DATASET: the same recipe on other data. */
static enum mlo_status set_data(struct mlo_recipe *recipe, const char *role, const json_t *value,
                                struct mlo_error *err)
{
    const char **slots[] = {&recipe->calibrate, &recipe->select, &recipe->evaluate};
    for (size_t i = 0; i < MLO_COUNT(DATA_KEYS); i++) {
        if (strcmp(role, DATA_KEYS[i]) != 0)
            continue;
        if (!json_is_string(value) || !json_string_length(value))
            return mlo_error_set(err, MLO_EINVAL, "data.%s must be the name of a dataset", role);
        *slots[i] = mlo_arena_strdup(recipe->arena, json_string_value(value));
        return *slots[i] ? MLO_OK : mlo_error_nomem(err);
    }
    const char *near = mlo_suggest(role, DATA_KEYS, MLO_COUNT(DATA_KEYS));
    enum mlo_status status = mlo_error_set(err, MLO_EINVAL, "a recipe has no data role '%s'", role);
    mlo_error_hint(err, near ? "did you mean 'data.%s'?" : "roles are calibrate, select and evaluate%s",
                   near ? near : "");
    return status;
}

/* postprocess=MODEL; "none" takes it away. */
static enum mlo_status set_postprocess(struct mlo_recipe *recipe, const char *name, struct mlo_error *err)
{
    bool none = strcmp(name, "none") == 0;
    if (!*name)
        return mlo_error_set(err, MLO_EINVAL, "postprocess must be the name of a model, or none");
    recipe->postprocess = none ? NULL : mlo_arena_strdup(recipe->arena, name);
    return none || recipe->postprocess ? make_canonical(recipe, err) : mlo_error_nomem(err);
}

/* needs.KEY=VALUE and timeout=VALUE. */
static enum mlo_status set_need(struct mlo_recipe *recipe, const char *key, const json_t *value,
                                struct mlo_error *err)
{
    char path[80];
    struct mlo_needs needs = recipe->needs;
    bool timeout = strcmp(key, "timeout") == 0;
    snprintf(path, sizeof path, "%s%.60s", timeout ? "" : "needs.", key);
    enum mlo_status status = mlo_needs_set(&needs, key, path, value, err);
    if (status == MLO_OK)
        status = mlo_needs_check(&needs, "needs", err);
    if (status == MLO_OK)
        recipe->needs = needs;
    return status;
}

enum mlo_status mlo_recipe_set(struct mlo_recipe *recipe, const char *assignment, struct mlo_error *err)
{
    static const char POSTPROCESS[] = "postprocess=", TIMEOUT[] = "timeout=";
    if (mlo_str_starts(assignment, POSTPROCESS))
        return set_postprocess(recipe, assignment + strlen(POSTPROCESS), err);
    enum mlo_status status = MLO_OK;
    json_t *value = NULL, *options = NULL;
    struct mlo_arena *arena = mlo_arena_new();
    const char *dot = strchr(assignment, '.'), *equals = strchr(assignment, '=');
    char step[64], key[64];
    bool found = false;
    if (!arena)
        return mlo_error_nomem(err);
    bool timeout = mlo_str_starts(assignment, TIMEOUT);
    if (!timeout && (!dot || !equals || dot > equals || (size_t)(dot - assignment) >= sizeof step ||
                     (size_t)(equals - dot) > sizeof key)) {
        status = mlo_error_set(err, MLO_EINVAL, "'%s' is no setting", assignment);
        mlo_error_hint(err, "write STEP.OPTION=VALUE, such as quantize.calibrator=percentile, "
                            "data.ROLE=DATASET, needs.memory=8GB, timeout=2h, or postprocess=MODEL");
        goto out;
    }
    snprintf(step, sizeof step, "%.*s", timeout ? 0 : (int)(dot - assignment), assignment);
    snprintf(key, sizeof key, "%.*s", timeout ? (int)(equals - assignment) : (int)(equals - dot - 1),
             timeout ? assignment : dot + 1);
    struct mlo_yaml *node;
    MLO_TRY(mlo_yaml_parse(arena, equals + 1, strlen(equals + 1), assignment, &node, err));
    value = mlo_yaml_to_json(node);
    if (strcmp(step, "data") == 0) {
        MLO_TRY(set_data(recipe, key, value, err));
        found = true;
    } else if (timeout || strcmp(step, "needs") == 0) {
        if (!value) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(set_need(recipe, key, value, err));
        found = true;
    }
    for (size_t i = 0; i < recipe->step_count; i++) {
        if (strcmp(recipe->steps[i].name, step) != 0)
            continue;
        found = true;
        json_decref(options);
        options = json_copy(recipe->steps[i].options);
        if (!options || json_object_set(options, key, value)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        json_t *resolved;
        const struct mlo_step *row = mlo_step_find(step);
        MLO_TRY(mlo_options_resolve(row->options, options, &resolved, err));
        json_decref(recipe->steps[i].options);
        recipe->steps[i].options = resolved;
        MLO_TRY(settle_target(recipe, &recipe->steps[i], err));
    }
    if (!found) {
        const char *names[MAX_STEPS];
        for (size_t i = 0; i < recipe->step_count; i++)
            names[i] = recipe->steps[i].name;
        status = mlo_error_set(err, MLO_EINVAL, "the recipe '%s' has no step '%s'", recipe->name, step);
        mlo_error_suggest(err, step, names, recipe->step_count);
        goto out;
    }
    MLO_TRY(make_canonical(recipe, err));
out:
    json_decref(value);
    json_decref(options);
    mlo_arena_free(arena);
    return status;
}
