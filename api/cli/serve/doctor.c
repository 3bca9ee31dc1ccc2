/* `mlopt doctor`: what of this machine matters to a service that runs other people's models. */
#include "api/cli/serve/serve.h"
#include "pipeline/service/service.h"

static enum mlo_status doctor_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *layers = NULL, *layer, *all = NULL;
    struct mlo_table table;
    size_t i;
    bool whole = false;
    mlo_table_init(&table, "layer|here|what it does, or what it needs");
    MLO_TRY(mlo_isolation(&layers, &whole, err));
    if (cli->json) {
        all = json_pack("{s:O,s:b}", "isolation", layers, "whole", whole);
        MLO_TRY(mlo_cli_print_json(all, err));
        goto out;
    }
    json_array_foreach(layers, i, layer)
    {
        mlo_table_row(&table, mlo_json_str(layer, "layer", ""),
                      mlo_json_bool(layer, "on", false) ? "yes" : "no", mlo_json_str(layer, "note", ""));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    MLO_TRY(mlo_cli_print(err, "%s\n",
                          whole
                              ? "jobs are confined by every layer"
                              : "jobs run with the layers that there are; a worker with --require-isolation "
                                "would not start here"));
out:
    mlo_table_clear(&table);
    json_decref(layers);
    json_decref(all);
    return status;
}

const struct mlo_cli_verb mlo_verb_doctor = {
    .name = "doctor",
    .group = "Service",
    .run = doctor_run,
    .positional = "",
    .help = "what this machine's kernel has to keep jobs from harm",
};
