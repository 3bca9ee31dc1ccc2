/* Rows of the catalog as MLflow shows models and versions. */
#include <string.h>

#include "api/http/mlflow_impl.h"

/* MLflow's names of stages, the one that a version is said to be in first first. */
static const struct {
    const char *stage, *name;
} STAGES[] = {{"production", "Production"}, {"staging", "Staging"}};

static bool listed(const json_t *list, const char *text)
{
    json_t *item;
    size_t i;
    json_array_foreach((json_t *)list, i, item) if (strcmp(json_string_value(item), text) == 0) return true;
    return false;
}

static json_t *tags_of(const json_t *row)
{
    json_t *tags = json_array(), *value;
    const char *key;
    json_object_foreach(json_object_get(row, "tags"), key, value)
        json_array_append_new(tags, json_pack("{s:s, s:O}", "key", key, "value", value));
    return tags;
}

json_t *mlo_mlflow_version(const json_t *row)
{
    const json_t *stages = json_object_get(row, "stages");
    const char *current = mlo_json_bool(row, "archived", false) ? "Archived" : "None";
    const char *name = mlo_json_str(row, "name", "");
    char number[24];
    for (size_t i = MLO_COUNT(STAGES); i-- > 0;)
        if (listed(stages, STAGES[i].stage))
            current = STAGES[i].name;
    snprintf(number, sizeof number, "%lld", (long long)mlo_json_i64(row, "version", 0));
    /* no version comes from a run of MLflow's */
    return json_pack("{s:s, s:s, s:O, s:O, s:O, s:s, s:O, s:s+++, s:s, s:s, s:s, s:o, s:O}", "name", name,
                     "version", number, "creation_timestamp", json_object_get(row, "created_ms"),
                     "last_updated_timestamp", json_object_get(row, "changed_ms"), "user_id",
                     json_object_get(row, "created_by"), "current_stage", current, "description",
                     json_object_get(row, "description"), "source", "mlflow-artifacts:/", name, "/", number,
                     "run_id", "", "run_link", "", "status", "READY", "tags", tags_of(row), "aliases",
                     stages);
}

json_t *mlo_mlflow_model(const json_t *row, const json_t *version_rows)
{
    json_t *versions = json_array(), *aliases = json_array(), *item;
    size_t i;
    char number[24];
    json_array_foreach((json_t *)version_rows, i,
                       item) if (strcmp(mlo_json_str(item, "name", ""), mlo_json_str(row, "name", "?")) == 0)
        json_array_append_new(versions, mlo_mlflow_version(item));
    json_array_foreach(json_object_get(row, "stages"), i, item)
    {
        snprintf(number, sizeof number, "%lld", (long long)mlo_json_i64(item, "version", 0));
        json_array_append_new(
            aliases, json_pack("{s:O, s:s}", "alias", json_object_get(item, "stage"), "version", number));
    }
    return json_pack("{s:O, s:O, s:O, s:O, s:O, s:o, s:o, s:o}", "name", json_object_get(row, "name"),
                     "creation_timestamp", json_object_get(row, "created_ms"), "last_updated_timestamp",
                     json_object_get(row, "changed_ms"), "user_id", json_object_get(row, "created_by"),
                     "description", json_object_get(row, "description"), "latest_versions", versions, "tags",
                     tags_of(row), "aliases", aliases);
}
