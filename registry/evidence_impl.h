/* Private to registry: the columns of a piece of evidence, as every list gives them. */
#ifndef MLO_REGISTRY_EVIDENCE_IMPL_H
#define MLO_REGISTRY_EVIDENCE_IMPL_H

#define MLO_EVIDENCE_COLUMNS                                                                                 \
    "e.id, e.artifact, e.dataset, "                                                                          \
    "(SELECT p.name || '/' || d.name || '@' || dv.number FROM dataset_version dv JOIN dataset d ON d.id = "  \
    "dv.dataset_id "                                                                                         \
    "JOIN project p ON p.id = d.project_id WHERE dv.manifest_digest = e.dataset AND d.project_id = "         \
    "e.project_id "                                                                                          \
    "ORDER BY dv.id DESC LIMIT 1) AS dataset_name, "                                                         \
    "e.metric, e.params::json AS params, e.unit, e.value, e.low, e.high, e.n, e.baseline, e.comparison, "    \
    "e.comparison_value, e.comparison_low, e.comparison_high, e.protocol, e.engine, e.machine_class, "       \
    "e.machine::json AS machine, e.samples, e.data_role, e.run_id, e.job_id, e.at"

#endif
