/* Gates on provenance: what is recorded of how an artifact came to be. A new fact is one row. */
#include <string.h>

#include "registry/gate_impl.h"
#include "registry/sql_impl.h"

enum { CHAIN };

const struct mlo_sql mlo_sql_gate_provenance[] = {
    /* whether the recorded derivations lead from the artifact to the version's upload */
    [CHAIN] =
        {"gate_chain",
         "WITH RECURSIVE up(digest) AS (SELECT $2::bytea UNION SELECT e.parent FROM lineage_edge e JOIN up u "
         "ON e.child = u.digest WHERE e.project_id = $1 AND e.kind = 'derived-from' AND e.derivation IS NOT "
         "NULL) SELECT count(*) FROM up WHERE digest = $3::bytea",
         3},
};
const size_t mlo_sql_gate_provenance_count = MLO_COUNT(mlo_sql_gate_provenance);

/* Whether it holds for a variant; with `why` in words. */
typedef enum mlo_status fact_fn(struct mlo_gate_case *c, const struct mlo_release_item *item, bool *holds,
                                const char **why, struct mlo_error *err);

static enum mlo_status derived(struct mlo_gate_case *c, const struct mlo_release_item *item, bool *holds,
                               const char **why, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t found = 0;
    if (mlo_digest_eq(&item->variant.artifact, &c->version->artifact)) {
        *holds = true;
        *why = "it is the upload itself";
        return MLO_OK;
    }
    mlo_param_i64(&p, c->project_id);
    mlo_param_digest(&p, &item->variant.artifact);
    mlo_param_digest(&p, &c->version->artifact);
    enum mlo_status status = mlo_sql_number(c->conn, &mlo_sql_gate_provenance[CHAIN], &p, &found, err);
    *holds = found > 0;
    *why = *holds ? "recorded derivations lead from the upload to it"
                  : "no chain of recorded derivations leads from the upload to it";
    return status;
}

static const struct {
    const char *name;
    fact_fn *check;
} FACTS[] = {{"derived", derived}};

static enum mlo_status parse(struct mlo_policy_reader *r, const struct mlo_yaml *item, struct mlo_gate *gate)
{
    const char *names[MLO_COUNT(FACTS)];
    MLO_UNUSED(item);
    for (size_t i = 0; i < MLO_COUNT(FACTS); i++) {
        names[i] = FACTS[i].name;
        if (gate->text && strcmp(gate->text, names[i]) == 0)
            return MLO_OK;
    }
    return mlo_policy_unknown(r, gate->line, "provenance", gate->text ? gate->text : "", names,
                              MLO_COUNT(names));
}

static enum mlo_status judge(struct mlo_gate_case *c, const struct mlo_gate *gate, struct mlo_error *err)
{
    fact_fn *check = NULL;
    for (size_t i = 0; i < MLO_COUNT(FACTS); i++)
        if (strcmp(gate->text, FACTS[i].name) == 0)
            check = FACTS[i].check;
    for (size_t i = 0; i < c->content->count; i++) {
        const struct mlo_release_item *item = &c->content->items[i];
        const char *why = "";
        bool holds = false;
        if (!mlo_gate_concerns(gate, item->target))
            continue;
        enum mlo_status status = check(c, item, &holds, &why, err);
        if (status == MLO_OK && !mlo_gate_row(c, gate, item, holds, "%s", why))
            status = mlo_error_nomem(err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

const struct mlo_gate_kind mlo_gate_provenance = {.name = "provenance", .parse = parse, .judge = judge};
