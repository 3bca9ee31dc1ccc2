/* From the YAML of a policy to its gates. */
#include <fnmatch.h>
#include <string.h>

#include "registry/gate_impl.h"

enum { GATES_MAX = 64, TARGETS_MAX = 16 };

/* The kinds of gates: a new one is a file with its row, and a place here. */
static const struct mlo_gate_kind *const KINDS[] = {&mlo_gate_evidence, &mlo_gate_provenance,
                                                    &mlo_gate_compatible, &mlo_gate_approvals};

static const char *const TOP_KEYS[] = {"inherit", "stages"};
static const char *const STAGES[] = {"staging", "production"};

enum mlo_status mlo_policy_bad(struct mlo_policy_reader *r, int line, const char *fmt, ...)
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

enum mlo_status mlo_policy_unknown(struct mlo_policy_reader *r, int line, const char *kind, const char *word,
                                   const char *const *known, size_t count)
{
    enum mlo_status status = mlo_policy_bad(r, line, "unknown %s '%.60s'", kind, word);
    const char *near = mlo_suggest(word, known, count);
    struct mlo_buf list = MLO_BUF_INIT;
    mlo_buf_names(&list, known, count);
    if (near)
        mlo_error_hint(r->err, "did you mean '%s'? Allowed here: %s", near, mlo_buf_str(&list));
    else
        mlo_error_hint(r->err, "allowed here: %s", mlo_buf_str(&list));
    mlo_buf_clear(&list);
    return status;
}

enum mlo_status mlo_policy_text(struct mlo_policy_reader *r, const struct mlo_yaml *item, const char *key,
                                const char **out)
{
    const struct mlo_yaml *member = mlo_yaml_get(item, key);
    *out = NULL;
    if (!member)
        return MLO_OK;
    if (member->kind != MLO_YAML_SCALAR || !*member->text)
        return mlo_policy_bad(r, member->line, "'%s' must be one text", key);
    *out = member->text;
    return MLO_OK;
}

static enum mlo_status read_targets(struct mlo_policy_reader *r, const struct mlo_yaml *item,
                                    struct mlo_gate *gate)
{
    const struct mlo_yaml *member = mlo_yaml_get(item, "targets");
    if (!member)
        return MLO_OK;
    if (member->kind != MLO_YAML_LIST || member->count == 0 || member->count > TARGETS_MAX) {
        mlo_policy_bad(r, member->line, "'targets' must be a list of 1 to %d targets", TARGETS_MAX);
        mlo_error_hint(r->err, "write for example targets: [any, \"cpu:*\"]");
        return MLO_EINVAL;
    }
    const char **targets = mlo_arena_calloc(r->arena, member->count, sizeof *targets);
    if (!targets)
        return mlo_error_nomem(r->err);
    for (const struct mlo_yaml *t = member->first; t; t = t->next) {
        if (t->kind != MLO_YAML_SCALAR || !*t->text)
            return mlo_policy_bad(r, t->line, "a target is a text such as any, cpu:avx2 or \"cuda:*\"");
        targets[gate->target_count++] = t->text;
    }
    gate->targets = targets;
    return MLO_OK;
}

static const struct mlo_gate_kind *kind_of(const struct mlo_yaml *item)
{
    for (size_t k = 0; k < MLO_COUNT(KINDS); k++)
        if (mlo_yaml_get(item, KINDS[k]->name))
            return KINDS[k];
    return NULL;
}

static size_t allowed_keys(const struct mlo_gate_kind *kind, const char *out[MLO_GATE_KEYS + 2])
{
    size_t n = 0;
    out[n++] = kind->name;
    out[n++] = "targets";
    for (size_t i = 0; i < MLO_GATE_KEYS && kind->keys[i]; i++)
        out[n++] = kind->keys[i];
    return n;
}

static enum mlo_status read_gate(struct mlo_policy_reader *r, const struct mlo_yaml *item,
                                 struct mlo_gate *gate)
{
    const char *names[MLO_COUNT(KINDS)], *keys[MLO_GATE_KEYS + 2];
    for (size_t k = 0; k < MLO_COUNT(KINDS); k++)
        names[k] = KINDS[k]->name;
    if (item->kind != MLO_YAML_MAP || item->count == 0) {
        mlo_policy_bad(r, item->line, "a gate is written \"- KIND: condition\", with its options below");
        mlo_error_hint(r->err, "for example: - evidence: top1 >= source - 0.5pt");
        return MLO_EINVAL;
    }
    gate->kind = kind_of(item);
    if (!gate->kind)
        return mlo_policy_unknown(r, item->first->key_line, "kind of gate", item->first->key, names,
                                  MLO_COUNT(names));
    size_t count = allowed_keys(gate->kind, keys);
    for (const struct mlo_yaml *m = item->first; m; m = m->next)
        if (!mlo_str_among(m->key, keys, count))
            return mlo_policy_unknown(r, m->key_line, "key", m->key, keys, count);
    const struct mlo_yaml *condition = mlo_yaml_get(item, gate->kind->name);
    gate->line = condition->key_line;
    enum mlo_status status = mlo_policy_text(r, item, gate->kind->name, &gate->text);
    if (status == MLO_OK)
        status = read_targets(r, item, gate);
    return status == MLO_OK ? gate->kind->parse(r, item, gate) : status;
}

static enum mlo_status read_stage(struct mlo_policy_reader *r, const struct mlo_yaml *list,
                                  struct mlo_policy_stage *out)
{
    if (!mlo_str_among(list->key, STAGES, MLO_COUNT(STAGES)))
        return mlo_policy_unknown(r, list->key_line, "stage", list->key, STAGES, MLO_COUNT(STAGES));
    out->name = list->key;
    if (list->kind != MLO_YAML_LIST || list->count > GATES_MAX) {
        mlo_policy_bad(r, list->line, "'%s' must be a list of at most %d gates", list->key, GATES_MAX);
        mlo_error_hint(r->err, "write one gate a line: - evidence: top1 >= source - 0.5pt; none at all: []");
        return MLO_EINVAL;
    }
    out->gates = mlo_arena_calloc(r->arena, list->count, sizeof *out->gates);
    if (!out->gates)
        return mlo_error_nomem(r->err);
    for (const struct mlo_yaml *item = list->first; item; item = item->next) {
        enum mlo_status status = read_gate(r, item, &out->gates[out->count]);
        if (status != MLO_OK)
            return status;
        out->count++;
    }
    return MLO_OK;
}

static enum mlo_status read_policy(struct mlo_policy_reader *r, const struct mlo_yaml *root,
                                   struct mlo_policy *out)
{
    if (root->kind != MLO_YAML_MAP)
        return mlo_policy_bad(r, root->line, "a policy is a map with the key 'stages'");
    for (const struct mlo_yaml *m = root->first; m; m = m->next) {
        if (strcmp(m->key, "inherit") == 0) {
            out->inherit = m->kind == MLO_YAML_SCALAR && strcmp(m->text, "true") == 0;
            if (!out->inherit && !(m->kind == MLO_YAML_SCALAR && strcmp(m->text, "false") == 0))
                return mlo_policy_bad(r, m->line, "'inherit' is true or false");
        } else if (strcmp(m->key, "stages") == 0) {
            if (m->kind != MLO_YAML_MAP)
                return mlo_policy_bad(r, m->line, "'stages' is a map of staging and production");
            for (const struct mlo_yaml *s = m->first; s; s = s->next) {
                enum mlo_status status =
                    out->stage_count < MLO_COUNT(out->stages)
                        ? read_stage(r, s, &out->stages[out->stage_count++])
                        : mlo_policy_unknown(r, s->key_line, "stage", s->key, STAGES, MLO_COUNT(STAGES));
                if (status != MLO_OK)
                    return status;
            }
        } else {
            return mlo_policy_unknown(r, m->key_line, "key", m->key, TOP_KEYS, MLO_COUNT(TOP_KEYS));
        }
    }
    if (!mlo_yaml_get(root, "stages") && !out->inherit)
        return mlo_policy_bad(r, root->line, "the key 'stages' is missing");
    return MLO_OK;
}

enum mlo_status mlo_policy_parse(const char *text, size_t size, const char *name, struct mlo_policy **out,
                                 struct mlo_error *err)
{
    struct mlo_yaml *root = NULL;
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_policy *policy = arena ? mlo_arena_alloc(arena, sizeof *policy) : NULL;
    struct mlo_policy_reader r = {arena, name, err};
    enum mlo_status status;
    *out = NULL;
    if (!policy) {
        status = mlo_error_nomem(err);
        goto out;
    }
    policy->arena = arena;
    if (size > MLO_POLICY_TEXT_MAX) {
        status = mlo_error_set(err, MLO_ETOOBIG, "a policy has at most %zu bytes", MLO_POLICY_TEXT_MAX);
        goto out;
    }
    MLO_TRY(mlo_yaml_parse(arena, text, size, name, &root, err));
    MLO_TRY(read_policy(&r, root, policy));
    *out = policy;
out:
    if (status != MLO_OK)
        mlo_arena_free(arena);
    return status;
}

void mlo_policy_free(struct mlo_policy *policy)
{
    if (policy)
        mlo_arena_free(policy->arena);
}

json_t *mlo_policy_json(const struct mlo_policy *policy)
{
    json_t *stages = json_object();
    for (size_t s = 0; s < policy->stage_count; s++) {
        json_t *gates = json_array();
        for (size_t g = 0; g < policy->stages[s].count; g++) {
            const struct mlo_gate *gate = &policy->stages[s].gates[g];
            json_array_append_new(gates, json_pack("{s:s, s:s, s:i}", "gate", gate->kind->name, "text",
                                                   gate->text, "line", gate->line));
        }
        json_object_set_new(stages, policy->stages[s].name, gates);
    }
    return json_pack("{s:b, s:o}", "inherit", policy->inherit, "stages", stages);
}

bool mlo_gate_concerns(const struct mlo_gate *gate, const char *target)
{
    for (size_t i = 0; i < gate->target_count; i++)
        if (fnmatch(gate->targets[i], target, 0) == 0)
            return true;
    return gate->target_count == 0;
}
