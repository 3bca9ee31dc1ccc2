/* The mlopt program: its table of verbs. */
#include "api/cli/local/local_impl.h"
#if MLOPT_SERVICE
#include "api/cli/client/client.h"
#include "api/cli/serve/serve.h"
#endif

static const struct mlo_cli_verb *const verbs[] = {
    &mlo_verb_inspect,
    &mlo_verb_run,
    &mlo_verb_optimize,
    &mlo_verb_quantize,
    &mlo_verb_eval,
    &mlo_verb_bench,
    &mlo_verb_engines,
    &mlo_verb_diff,
    &mlo_verb_compile,
    &mlo_verb_qat_export,
    &mlo_verb_sensitivity,
    &mlo_verb_observe,
#if MLOPT_SERVICE
    &mlo_verb_push,
    &mlo_verb_data_push,
    &mlo_verb_data_pull,
    &mlo_verb_models,
    &mlo_verb_search,
    &mlo_verb_datasets,
    &mlo_verb_variants,
    &mlo_verb_lineage,
    &mlo_verb_report,
    &mlo_verb_pull,
    &mlo_verb_reproduce,
    &mlo_verb_delete,
    &mlo_verb_data_delete,
    &mlo_verb_undelete,
    &mlo_verb_deletions,
    &mlo_verb_archive,
    &mlo_verb_unarchive,
    &mlo_verb_submit,
    &mlo_verb_runs,
    &mlo_verb_cancel,
    &mlo_verb_promote,
    &mlo_verb_rollback,
    &mlo_verb_approve,
    &mlo_verb_approvals,
    &mlo_verb_quarantine_list,
    &mlo_verb_quarantine_release,
    &mlo_verb_policy_show,
    &mlo_verb_policy_set,
    &mlo_verb_policy_check,
    &mlo_verb_comment,
    &mlo_verb_history,
    &mlo_verb_audit,
    &mlo_verb_keys,
    &mlo_verb_attest_show,
    &mlo_verb_attest_verify,
    &mlo_verb_up,
    &mlo_verb_status,
    &mlo_verb_server,
    &mlo_verb_worker,
    &mlo_verb_migrate,
    &mlo_verb_backup,
    &mlo_verb_backup_verify,
    &mlo_verb_restore,
    &mlo_verb_gc,
    &mlo_verb_fsck,
#endif
    &mlo_verb_help,
    &mlo_verb_completion,
    &mlo_verb_step_exec,
    &mlo_verb_bench_child,
};

int main(int argc, char **argv)
{
    return mlo_cli_main(verbs, MLO_COUNT(verbs), argc, argv);
}
