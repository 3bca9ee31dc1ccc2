/* Gates on provenance: what is recorded of how an artifact came to be. A new fact is one row. */
#include <stdlib.h>
#include <string.h>

#include "registry/facts.h"
#include "registry/gate_impl.h"
#include "registry/sql_impl.h"

enum { CHAIN, REPRODUCED };

const struct mlo_sql mlo_sql_gate_provenance[] = {
    /* whether the recorded derivations lead from the artifact to the version's upload */
    [CHAIN] =
        {"gate_chain",
         "WITH RECURSIVE up(digest) AS (SELECT $2::bytea UNION SELECT e.parent FROM lineage_edge e JOIN up u "
         "ON e.child = u.digest WHERE e.project_id = $1 AND e.kind = 'derived-from' AND e.derivation IS NOT "
         "NULL) SELECT count(*) FROM up WHERE digest = $3::bytea",
         3},
    /* the derivations on the ways from the upload to the artifact, each with the newest time it was run again
     */
    [REPRODUCED] =
        {"gate_reproduced",
         "WITH RECURSIVE up(digest) AS (SELECT $2::bytea UNION SELECT e.parent FROM lineage_edge e JOIN up u "
         "ON e.child = u.digest WHERE e.project_id = $1 AND e.kind = 'derived-from' AND e.derivation IS NOT "
         "NULL AND u.digest <> $3::bytea) "
         "SELECT e.child, e.parent, d.step, r.made = r.artifact, r.made, a.signer, r.machine_class, "
         "to_char(r.at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') "
         "FROM lineage_edge e JOIN up ON up.digest = e.child JOIN derivation d ON d.key = e.derivation "
         "LEFT JOIN LATERAL (SELECT * FROM reproduction p WHERE p.project_id = $1 AND p.artifact = e.child "
         "AND p.parent = e.parent ORDER BY p.id DESC LIMIT 1) r ON true "
         "LEFT JOIN attestation a ON a.id = r.attestation "
         "WHERE e.project_id = $1 AND e.kind = 'derived-from' AND e.child <> $3::bytea ORDER BY d.step",
         3},
};
const size_t mlo_sql_gate_provenance_count = MLO_COUNT(mlo_sql_gate_provenance);

/* What is recorded about one variant, or about the version. */
struct finding {
    bool holds;
    char why[400];
    json_t *facts; /* object, shown with the condition; NULL: none */
};
typedef enum mlo_status fact_fn(struct mlo_gate_case *c, const struct mlo_release_item *item,
                                struct finding *out, struct mlo_error *err);

static bool is_upload(const struct mlo_gate_case *c, const struct mlo_release_item *item, struct finding *out)
{
    out->holds = mlo_digest_eq(&item->variant.artifact, &c->version->artifact);
    if (out->holds)
        snprintf(out->why, sizeof out->why, "it is the upload itself");
    return out->holds;
}

static enum mlo_status derived(struct mlo_gate_case *c, const struct mlo_release_item *item,
                               struct finding *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t found = 0;
    if (is_upload(c, item, out))
        return MLO_OK;
    mlo_param_i64(&p, c->project_id);
    mlo_param_digest(&p, &item->variant.artifact);
    mlo_param_digest(&p, &c->version->artifact);
    enum mlo_status status = mlo_sql_number(c->conn, &mlo_sql_gate_provenance[CHAIN], &p, &found, err);
    out->holds = found > 0;
    snprintf(out->why, sizeof out->why, "%s",
             out->holds ? "recorded derivations lead from the upload to it"
                        : "no chain of recorded derivations leads from the upload to it");
    return status;
}

/* --- reproduced ---------------------------------------------------------------------------------------- */

enum { E_CHILD, E_PARENT, E_STEP, E_MATCHED, E_MADE, E_SIGNER, E_MACHINE, E_AT };

/* Walks from the artifact along what gave the same bytes again: `reached` marks the edges whose child was
 * reached. */
static bool walk(const struct mlo_rows *edges, const struct mlo_digest *from, const struct mlo_digest *to,
                 bool *reached)
{
    int count = mlo_rows_count(edges);
    bool arrived = false, more = true;
    struct mlo_digest child, parent, other;
    for (int i = 0; i < count; i++)
        reached[i] = mlo_rows_digest(edges, i, E_CHILD, &child) && mlo_digest_eq(&child, from);
    while (more) {
        more = false;
        for (int i = 0; i < count; i++) {
            if (!reached[i] || !mlo_rows_bool(edges, i, E_MATCHED) ||
                !mlo_rows_digest(edges, i, E_PARENT, &parent))
                continue;
            arrived = arrived || mlo_digest_eq(&parent, to);
            for (int k = 0; k < count; k++) {
                if (reached[k] || !mlo_rows_digest(edges, k, E_CHILD, &other) ||
                    !mlo_digest_eq(&other, &parent))
                    continue;
                reached[k] = more = true;
            }
        }
    }
    return arrived;
}

/* The way ends at a derivation that was not run again, or that gave something else. */
static void say_missing(const struct mlo_rows *edges, const bool *reached, struct finding *out)
{
    int missing = -1, differs = -1;
    for (int i = 0; i < mlo_rows_count(edges); i++) {
        if (reached[i] && mlo_rows_null(edges, i, E_MATCHED))
            missing = i;
        else if (reached[i] && !mlo_rows_bool(edges, i, E_MATCHED))
            differs = i;
    }
    if (differs >= 0) {
        char text[MLO_DIGEST_TEXT_SIZE] = "other bytes";
        struct mlo_digest made;
        if (mlo_rows_digest(edges, differs, E_MADE, &made))
            mlo_digest_text(&made, text);
        snprintf(out->why, sizeof out->why, "the step %s gave %s when it was run again at %s on %s",
                 mlo_rows_text(edges, differs, E_STEP), text, mlo_rows_text(edges, differs, E_AT),
                 mlo_rows_text(edges, differs, E_MACHINE));
        out->facts = json_pack("{s:s, s:s}", "differs", mlo_rows_text(edges, differs, E_STEP), "made", text);
    } else if (missing >= 0) {
        snprintf(out->why, sizeof out->why, "the step %s was not run again: mlopt reproduce does it",
                 mlo_rows_text(edges, missing, E_STEP));
        out->facts = json_pack("{s:s}", "missing", mlo_rows_text(edges, missing, E_STEP));
    } else {
        snprintf(out->why, sizeof out->why, "no chain of recorded derivations leads from the upload to it");
    }
}

/* Every derivation from the upload to the variant was run again, and the newest time gave the same bytes. */
static enum mlo_status reproduced(struct mlo_gate_case *c, const struct mlo_release_item *item,
                                  struct finding *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows edges = {0};
    bool *reached = NULL;
    if (is_upload(c, item, out))
        return MLO_OK;
    mlo_param_i64(&p, c->project_id);
    mlo_param_digest(&p, &item->variant.artifact);
    mlo_param_digest(&p, &c->version->artifact);
    MLO_TRY(mlo_db_exec(c->conn, &mlo_sql_gate_provenance[REPRODUCED], &p, &edges, err));
    int count = mlo_rows_count(&edges), again = 0;
    reached = calloc((size_t)count + 1, sizeof *reached);
    if (!reached) {
        status = mlo_error_nomem(err);
        goto out;
    }
    out->holds = walk(&edges, &item->variant.artifact, &c->version->artifact, reached);
    if (!out->holds) {
        say_missing(&edges, reached, out);
        goto out;
    }
    const char *signer = NULL, *machine = NULL, *at = NULL;
    for (int i = 0; i < count; i++) {
        if (!reached[i] || !mlo_rows_bool(&edges, i, E_MATCHED))
            continue;
        again++;
        if (!at || strcmp(mlo_rows_text(&edges, i, E_AT), at) > 0) {
            at = mlo_rows_text(&edges, i, E_AT);
            signer = mlo_rows_text(&edges, i, E_SIGNER);
            machine = mlo_rows_text(&edges, i, E_MACHINE);
        }
    }
    snprintf(out->why, sizeof out->why,
             "%d derivation%s run again gave the same bytes, last at %s on %s by %s", again,
             again == 1 ? "" : "s", at, machine, signer);
    out->facts = json_pack("{s:i, s:s, s:s, s:s}", "derivations", again, "at", at, "machine_class", machine,
                           "signer", signer);
out:
    free(reached);
    mlo_rows_clear(&edges);
    return status;
}

/* --- what the version says of itself -------------------------------------------------------------------- */

/* The code that trained it is a commit, and nothing beside it. */
static void commit(const json_t *facts, struct finding *out)
{
    const json_t *code = json_object_get(facts, "code");
    const char *text = mlo_json_str(code, "commit", NULL), *remote = mlo_json_str(code, "remote", "");
    bool dirty = mlo_json_bool(code, "dirty", true);
    out->holds = text && !dirty;
    if (!text)
        snprintf(out->why, sizeof out->why,
                 "the version names no commit of the code that trained it: mlopt push tells it");
    else
        snprintf(out->why, sizeof out->why, "trained by commit %.64s%s%.200s%s", text, *remote ? " of " : "",
                 remote, dirty ? ", with changes that are not in it" : "");
    out->facts = json_incref((json_t *)code);
}

/* The data that trained it is known, and in this project. */
static void dataset(const json_t *facts, struct finding *out)
{
    json_t *list = json_object_get(facts, "datasets");
    const json_t *first = json_array_get(list, 0);
    size_t count = json_array_size(list);
    out->holds = count > 0;
    if (count)
        snprintf(out->why, sizeof out->why, "trained on %s@%lld, %s%s",
                 mlo_json_str(first, "name", "a dataset"), (long long)mlo_json_i64(first, "version", 0),
                 mlo_json_str(first, "digest", ""), count > 1 ? " and others" : "");
    else
        snprintf(out->why, sizeof out->why,
                 "the version names no dataset that it was trained on: mlopt push tells it");
    out->facts = json_pack("{s:O?}", "datasets", list);
}

/* One of the two: what is found of a variant, or what the version says, which is the same for all of them. */
static const struct {
    const char *name;
    fact_fn *of_variant;
    void (*of_version)(const json_t *facts, struct finding *out);
} FACTS[] = {{"derived", derived, NULL},
             {"reproduced", reproduced, NULL},
             {"commit", NULL, commit},
             {"dataset", NULL, dataset}};

static enum mlo_status look(struct mlo_gate_case *c, size_t fact, const struct mlo_release_item *item,
                            struct finding *out, struct mlo_error *err)
{
    json_t *facts = NULL;
    if (FACTS[fact].of_variant)
        return FACTS[fact].of_variant(c, item, out, err);
    enum mlo_status status = mlo_version_facts(c->conn, c->version->id, &facts, err);
    if (status == MLO_OK)
        FACTS[fact].of_version(facts, out);
    json_decref(facts);
    return status;
}

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
    size_t fact = 0, asked = 0;
    while (strcmp(gate->text, FACTS[fact].name) != 0)
        fact++; /* parse() lets no other pass */
    for (size_t i = 0; i < c->content->count; i++) {
        const struct mlo_release_item *item = &c->content->items[i];
        struct finding found = {0};
        bool of_version = FACTS[fact].of_version != NULL; /* asked once */
        if (!mlo_gate_concerns(gate, item->target) || (of_version && asked++))
            continue;
        enum mlo_status status = look(c, fact, item, &found, err);
        json_t *row = status == MLO_OK
                          ? mlo_gate_row(c, gate, of_version ? NULL : item, found.holds, "%s", found.why)
                          : NULL;
        if (status == MLO_OK && (!row || (found.facts && json_object_set(row, "facts", found.facts) != 0)))
            status = mlo_error_nomem(err);
        json_decref(found.facts);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

const struct mlo_gate_kind mlo_gate_provenance = {.name = "provenance", .parse = parse, .judge = judge};
