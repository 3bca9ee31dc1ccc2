/* Private to registry: policies as parsed, kinds of gates, and the case that they judge. */
#ifndef MLO_REGISTRY_GATE_IMPL_H
#define MLO_REGISTRY_GATE_IMPL_H

#include "registry/gates.h"
#include "registry/release_impl.h"

struct mlo_gate;
struct mlo_gate_case;

/* Reads policies; errors name file and line. */
struct mlo_policy_reader {
    struct mlo_arena *arena;
    const char *name;
    struct mlo_error *err;
};
enum mlo_status mlo_policy_bad(struct mlo_policy_reader *r, int line, const char *fmt, ...) MLO_PRINTF(3, 4);
/* "unknown KIND 'word'", with what was meant or what there is. */
enum mlo_status mlo_policy_unknown(struct mlo_policy_reader *r, int line, const char *kind, const char *word,
                                   const char *const *known, size_t count);
/* The member as one text; NULL when absent. */
enum mlo_status mlo_policy_text(struct mlo_policy_reader *r, const struct mlo_yaml *item, const char *key,
                                const char **out);

#define MLO_GATE_KEYS 8

/* A kind of gate: its name is its key in the YAML. */
struct mlo_gate_kind {
    const char *name;
    const char *keys[MLO_GATE_KEYS]; /* the others that it may have */
    enum mlo_status (*parse)(struct mlo_policy_reader *r, const struct mlo_yaml *item, struct mlo_gate *gate);
    /* Adds its rows to gate_case->rows (mlo_gate_row). */
    enum mlo_status (*judge)(struct mlo_gate_case *c, const struct mlo_gate *gate, struct mlo_error *err);
    bool after_shown; /* needs the digest of what the others showed */
};
extern const struct mlo_gate_kind mlo_gate_evidence, mlo_gate_provenance, mlo_gate_compatible,
    mlo_gate_approvals;

struct mlo_gate {
    const struct mlo_gate_kind *kind;
    const char *text; /* the condition as written */
    int line;
    const char *const *targets; /* patterns; NULL: all */
    size_t target_count;
    /* evidence */
    struct mlo_condition condition;
    const char *dataset, *machine_class, *engine; /* patterns; NULL: any */
    double younger_than_s;                        /* 0: any age */
    /* approvals */
    int64_t count;
    enum mlo_role role;
    bool author_too; /* the author's own counts */
};

struct mlo_policy_stage {
    const char *name;
    struct mlo_gate *gates;
    size_t count;
};

struct mlo_policy {
    struct mlo_arena *arena;
    bool inherit;
    struct mlo_policy_stage stages[2];
    size_t stage_count;
};

/* The gates of a stage; NULL: none. */
const struct mlo_policy_stage *mlo_policy_stage(const struct mlo_policy *policy, const char *stage);

/* Class of the advisory lock of policies; its object is the project. */
#define MLO_POLICY_LOCK_CLASS "1835821935"

/* A policy that applies, as stored. */
struct mlo_policy_row {
    const char *scope; /* "project" or "model" */
    int64_t revision;
    struct mlo_digest digest;
    struct mlo_policy *policy;
};
/* Those that apply to a model: at most the project's and its own. Clear them with mlo_policy_free. */
enum mlo_status mlo_policy_effective(struct mlo_db_conn *conn, int64_t project_id, int64_t model_id,
                                     struct mlo_policy_row out[2], size_t *count, struct mlo_error *err);

/* What is to be judged. Borrowed from the promotion. */
struct mlo_gate_case {
    struct mlo_db_conn *conn;
    int64_t project_id, model_id, generation;
    const char *object, *stage; /* "fashion/cnn:production", "production" */
    const struct mlo_version_info *version;
    const struct mlo_release_content *content;
    /* of the judging */
    const char *scope;        /* of the policy that is being judged */
    json_t *rows;             /* of the gate that is being judged */
    json_t *evidence_ids;     /* judged so far: {"id": true} */
    struct mlo_rows known;    /* evidence, newest first (gate_evidence.c) */
    struct mlo_rows bases;    /* what the stages hold now */
    struct mlo_rows consumed; /* the data that the artifacts were made with */
    bool consumed_loaded;
    struct mlo_digest shown;
};

/* Judges a promotion: *decision (yours) as in gates.h. The verdict is in *accepted. */
enum mlo_status mlo_gates_judge(struct mlo_gate_case *c, json_t **decision, bool *accepted,
                                struct mlo_error *err);
/* A row for the gate's list; `fmt` says why. NULL: out of memory. Borrowed. */
json_t *mlo_gate_row(struct mlo_gate_case *c, const struct mlo_gate *gate,
                     const struct mlo_release_item *item, bool holds, const char *fmt, ...) MLO_PRINTF(5, 6);
/* Whether the gate concerns a variant for this target. */
bool mlo_gate_concerns(const struct mlo_gate *gate, const char *target);

/* Loads what the gates of these policies on evidence will ask: one round trip for all of it. */
enum mlo_status mlo_gate_evidence_load(struct mlo_gate_case *c, const struct mlo_policy_row *policies,
                                       size_t count, struct mlo_error *err);

/* What is rolled back stays out: a row when the release is quarantined. */
enum mlo_status mlo_gate_quarantine(struct mlo_gate_case *c, struct mlo_error *err);
enum mlo_status mlo_gate_quarantine_ahead(struct mlo_gate_case *c, struct mlo_error *err);
/* Adds the newest evidence of each variant to what is shown: any new one voids an approval. */
enum mlo_status mlo_gate_newest(struct mlo_gate_case *c, struct mlo_error *err);

/* Queues the record of a decision, its canonical JSON, behind that of its audit entry; `rows` will hold its
 * id. */
enum mlo_status mlo_decision_queue(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_gate_case *c, const char *decision, bool accepted,
                                   const char *reason, struct mlo_rows *rows, struct mlo_error *err);

/* Reads ahead what judging asks for first: policies, and what the stages hold. */
enum mlo_status mlo_gates_ahead(struct mlo_db_conn *conn, int64_t project_id, int64_t model_id,
                                struct mlo_error *err);
enum mlo_status mlo_policy_ahead(struct mlo_db_conn *conn, int64_t project_id, int64_t model_id,
                                 struct mlo_error *err);
enum mlo_status mlo_gate_bases_ahead(struct mlo_db_conn *conn, int64_t model_id, struct mlo_error *err);

#endif
