/* What a stage holds, judged again by its gates on evidence. */
#include <stdlib.h>
#include <string.h>

#include "registry/pointer_impl.h"

/* The variants of the release, whose texts are borrowed from it. */
static enum mlo_status read_content(const json_t *release, const struct mlo_version_info *version,
                                    struct mlo_release_content *out, struct mlo_error *err)
{
    const json_t *variants = json_object_get(release, "variants"), *row;
    size_t i;
    out->count = json_array_size(variants);
    out->items = calloc(out->count + 1, sizeof *out->items);
    if (!out->items)
        return mlo_error_nomem(err);
    json_array_foreach((json_t *)variants, i, row)
    {
        struct mlo_release_item *item = &out->items[i];
        item->target = mlo_json_str(row, "target", "any");
        item->variant.version_id = version->id;
        item->variant.size_bytes = (uint64_t)mlo_json_i64(row, "size", 0);
        snprintf(item->variant.name, sizeof item->variant.name, "%s", mlo_json_str(row, "variant", ""));
        if (!mlo_digest_parse(mlo_json_str(row, "artifact", ""), &item->variant.artifact))
            return mlo_error_set(err, MLO_EINTERNAL, "release %lld has no artifact",
                                 (long long)mlo_json_i64(release, "release", 0));
    }
    return MLO_OK;
}

static enum mlo_status judge(struct mlo_gate_case *c, const struct mlo_policy_row *policies, size_t count,
                             struct mlo_error *err)
{
    enum mlo_status status = mlo_gate_evidence_load(c, policies, count, err);
    for (size_t i = 0; status == MLO_OK && i < count; i++) {
        const struct mlo_policy_stage *stage = mlo_policy_stage(policies[i].policy, c->stage);
        c->scope = policies[i].scope;
        for (size_t g = 0; status == MLO_OK && stage && g < stage->count; g++) {
            const struct mlo_gate *gate = &stage->gates[g];
            if (gate->kind == &mlo_gate_evidence && strcmp(gate->condition.base, c->stage) != 0)
                status = gate->kind->judge(c, gate, err);
        }
    }
    return status;
}

enum mlo_status mlo_stage_recheck(struct mlo_db_conn *conn, int64_t model_id, const char *stage, json_t **out,
                                  struct mlo_error *err)
{
    struct mlo_release_content content = {0};
    struct mlo_version_info version;
    struct mlo_policy_row policies[2];
    struct mlo_gate_case c = {.conn = conn, .model_id = model_id, .stage = stage};
    json_t *held = NULL, *row;
    size_t count = 0, i;
    bool holds = true;
    *out = NULL;
    enum mlo_status status = mlo_stage_get(conn, model_id, stage, &held, err);
    MLO_TRY(status);
    const json_t *release = json_object_get(held, "release");
    if (!json_is_object(release)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "%s is empty: nothing was promoted to it", stage);
        goto out;
    }
    MLO_TRY(mlo_version_find(conn, model_id, mlo_json_i64(release, "version", -1), &version, err));
    MLO_TRY(read_content(release, &version, &content, err));
    c.project_id = version.project_id;
    c.generation = mlo_json_i64(held, "generation", 0);
    c.version = &version;
    c.content = &content;
    c.rows = json_array();
    c.evidence_ids = json_object();
    if (!c.rows || !c.evidence_ids) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_policy_effective(conn, c.project_id, model_id, policies, &count, err));
    MLO_TRY(judge(&c, policies, count, err));
    json_array_foreach(c.rows, i, row) holds = holds && mlo_json_bool(row, "holds", false);
    *out = json_pack("{s:I, s:I, s:I, s:O, s:b}", "release", (json_int_t)mlo_json_i64(release, "release", 0),
                     "version", (json_int_t)version.number, "generation", (json_int_t)c.generation,
                     "conditions", c.rows, "holds", holds);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    while (count)
        mlo_policy_free(policies[--count].policy);
    mlo_rows_clear(&c.known);
    mlo_rows_clear(&c.bases);
    mlo_rows_clear(&c.consumed);
    json_decref(c.rows);
    json_decref(c.evidence_ids);
    mlo_release_content_clear(&content);
    json_decref(held);
    return status;
}
