#include "api/cli/client/statement.h"

#include <string.h>

#include "base/dsse.h"
#include "registry/attest.h"

void mlo_statement_open(const json_t *item, struct mlo_statement *out)
{
    struct mlo_buf payload = MLO_BUF_INIT;
    memset(out, 0, sizeof *out);
    if (mlo_dsse_verify(json_object_get(item, "envelope"), MLO_ATTEST_PAYLOAD, &payload, &out->signer,
                        &out->why) == MLO_OK &&
        mlo_json_parse(mlo_buf_str(&payload), payload.len, "the statement", &out->value, &out->why) ==
            MLO_OK &&
        (strcmp(mlo_json_str(out->value, "_type", ""), MLO_ATTEST_STATEMENT) != 0 ||
         strcmp(mlo_json_str(out->value, "predicateType", ""), MLO_ATTEST_PREDICATE) != 0)) {
        (void)mlo_error_set(&out->why, MLO_EFORMAT,
                            "the envelope holds no in-toto statement of SLSA provenance");
        json_decref(out->value);
        out->value = NULL;
    }
    mlo_buf_clear(&payload);
}

const char *mlo_statement_sha256(const json_t *resource)
{
    return mlo_json_str(json_object_get(resource, "digest"), "sha256", "");
}

const json_t *mlo_statement_subject(const json_t *statement)
{
    return json_array_get(json_object_get(statement, "subject"), 0);
}

const json_t *mlo_statement_definition(const json_t *statement)
{
    return json_object_get(json_object_get(statement, "predicate"), "buildDefinition");
}

const char *mlo_statement_parent(const json_t *statement)
{
    json_t *item;
    size_t i;
    json_array_foreach(json_object_get(mlo_statement_definition(statement), "resolvedDependencies"), i, item)
    {
        if (strcmp(mlo_json_str(item, "name", ""), "model") == 0)
            return mlo_statement_sha256(item);
    }
    return "";
}

enum mlo_status mlo_statements_fetch(struct mlo_client *client, const char *name, struct mlo_client_ref *ref,
                                     json_t **out, char source[72], struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *variants = NULL, *item;
    size_t i;
    const char *version;
    enum mlo_status status;
    source[0] = '\0';
    MLO_TRY(mlo_client_ref_parse(name, ref, err));
    MLO_TRY(mlo_client_ref_version(ref, &version, err));
    if (!*ref->variant)
        snprintf(ref->variant, sizeof ref->variant, "source");
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants", ref->project, ref->name,
                    version);
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &variants, err));
    json_array_foreach(variants, i, item)
    {
        const char *artifact = mlo_json_str(item, "artifact", "");
        if (strcmp(mlo_json_str(item, "variant", ""), "source") == 0 && mlo_str_starts(artifact, "sha256:"))
            snprintf(source, 72, "%.64s", artifact + 7);
    }
    mlo_client_path(&path, "/%s/attestations", ref->variant);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), out, err));
out:
    json_decref(variants);
    mlo_buf_clear(&path);
    return status;
}
