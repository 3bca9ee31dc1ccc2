/* The public header of registry/: facts in PostgreSQL, bytes in a blob store. Stands on base and migrations
 * only; it does not know what ONNX is. */
#ifndef MLO_REGISTRY_H
#define MLO_REGISTRY_H

#include "registry/actor.h"
#include "registry/attest.h"
#include "registry/audit.h"
#include "registry/backup.h"
#include "registry/blob.h"
#include "registry/catalog.h"
#include "registry/comment.h"
#include "registry/db.h"
#include "registry/deletion.h"
#include "registry/embedded.h"
#include "registry/evidence.h"
#include "registry/facts.h"
#include "registry/fsck.h"
#include "registry/gates.h"
#include "registry/gc.h"
#include "registry/gc_service.h"
#include "registry/idempotency.h"
#include "registry/keys.h"
#include "registry/ledger.h"
#include "registry/ledger_check.h"
#include "registry/ledger_service.h"
#include "registry/member.h"
#include "registry/migrate.h"
#include "registry/models.h"
#include "registry/page.h"
#include "registry/ref.h"
#include "registry/reproduction.h"
#include "registry/search.h"
#include "registry/signature.h"
#include "registry/stages.h"
#include "registry/target.h"
#include "registry/upload.h"
#include "registry/webhook.h"

/* A module's statements, for the test that prepares every one. */
struct mlo_sql_table {
    const char *module;
    const struct mlo_sql *statements;
    size_t count;
};
const struct mlo_sql_table *mlo_registry_sql(size_t *count);

#endif
