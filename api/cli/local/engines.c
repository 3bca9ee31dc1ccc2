#include "api/cli/local/local_impl.h"

static const char *const targets[] = {"any", "cpu:avx2", "cpu:avx512", "cpu:avx512-vnni"};

static enum mlo_status engines_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count;
    const struct mlo_engine *const *engines = mlo_engine_table(&count);
    json_t *list = json_array(), *all = NULL, *machine = NULL, *satisfied = json_array();
    struct mlo_table table = {0};
    char class_name[96];
    mlo_table_init(&table, "engine|version|here");
    for (size_t i = 0; i < count; i++) {
        struct mlo_error why = {0};
        bool here = engines[i]->probe(&why) == MLO_OK;
        mlo_table_row(&table, engines[i]->name, engines[i]->version(), here ? "yes" : why.message);
        json_array_append_new(list, json_pack("{s:s,s:s,s:b,s:s?}", "name", engines[i]->name, "version",
                                              engines[i]->version(), "available", here, "reason",
                                              here ? NULL : why.message));
    }
    struct mlo_buf words = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(targets); i++) {
        if (!mlo_machine_satisfies(targets[i]))
            continue;
        json_array_append_new(satisfied, json_string(targets[i]));
        mlo_buf_printf(&words, "%s%s", words.len ? ", " : "", targets[i]);
    }
    MLO_TRY(mlo_machine_describe(&machine, err));
    mlo_machine_class(class_name, sizeof class_name);
    if (cli->json) {
        all = json_pack("{s:O,s:O,s:s,s:O}", "engines", list, "machine", machine, "machine_class", class_name,
                        "targets", satisfied);
        MLO_TRY(mlo_cli_print_json(all, err));
    } else {
        MLO_TRY(mlo_table_print_take(&table, err));
        MLO_TRY(mlo_cli_print(err, "machine class %s; satisfies %s; %u CPUs\n", class_name,
                              mlo_buf_str(&words), mlo_cpu_count()));
    }
out:
    mlo_table_clear(&table);
    mlo_buf_clear(&words);
    json_decref(all);
    json_decref(list);
    json_decref(machine);
    json_decref(satisfied);
    return status;
}

const struct mlo_cli_verb mlo_verb_engines = {
    .name = "engines",
    .group = "Local (no server needed)",
    .run = engines_run,
    .positional = "",
    .help = "which engines run here, and which targets this machine satisfies",
};
