/* What a version says about itself, beside its files: the code and data that trained it, its parameters and
 * metrics, tags, a licence. Part of the manifest, hence of its digest, and immutable as it is.
 *
 *     {"code":     {"remote": "https://host/org/repo.git", "commit": "<40 or 64 hex>", "dirty": false},
 *      "datasets": [{"name": "train", "version": 3, "digest": "sha256:…"}],   what it was trained on
 *      "params":   {"lr": 0.01, "optimizer": "sgd", "amp": true},
 *      "metrics":  {"val/top1": 0.913},
 *      "tags":     {"team": "vision", "nightly": ""},
 *      "licence":  "Apache-2.0",
 *      "teacher":  {"name": "big", "version": 3, "variant": "source", "digest": "sha256:…"},  what it was
 * distilled from
 *      "derived_from": {"name": "net", "version": 3, "variant": "pruned", "digest": "sha256:…"}}  what it was
 * made of elsewhere: fine-tuned, say
 *
 * Each member may be absent, `remote` too. They are declared by who pushes, not measured: gates on evidence
 * do not read them. */
#ifndef MLO_REGISTRY_FACTS_H
#define MLO_REGISTRY_FACTS_H

#include "registry/db.h"

#define MLO_FACT_NAME_MAX 100  /* bytes of a name */
#define MLO_FACT_TEXT_MAX 1000 /* bytes of a tag or a parameter's text */
#define MLO_FACTS_PARAMS_MAX 500
#define MLO_FACTS_METRICS_MAX 500
#define MLO_FACTS_TAGS_MAX 100
#define MLO_FACTS_DATASETS_MAX 50

/* A letter, digit or '_', then letters, digits, '_', '.', '-' and '/'. */
bool mlo_fact_name_valid(const char *name);

/* Checks what was given (NULL, null: nothing) and brings it into the form above: credentials are taken out of
 * `remote`, metrics become reals, empty members are left out. A dataset may be "NAME[@V]", "sha256:…" or an
 * object with a digest; it becomes what it is in this project, and the list is sorted by digest. A teacher
 * and what it was derived from may be "NAME@V[/VARIANT]". MLO_EINVAL names the member, MLO_ENOTFOUND a
 * dataset that the project does not have. *out is yours: NULL when there are none. */
MLO_MUST_USE enum mlo_status mlo_facts_read(struct mlo_db_conn *conn, int64_t project_id, const json_t *given,
                                            json_t **out, struct mlo_error *err);
/* The facts of a version as its manifest holds them, {} when none were given. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_version_facts(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                               struct mlo_error *err);

#endif
