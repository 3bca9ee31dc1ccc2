/* What a restored step may read and write of the plan's slots. */
#include "engines/cpu/image_impl.h"

bool cpu_slot_holds(struct cpu_reader *r, const struct mlo_plan *plan, int slot, size_t bytes)
{
    return cpu_check(r, slot >= 0 && slot < plan->slot_count, "a step names a slot that is not there") &&
           cpu_check(r, bytes <= plan->slots[slot].size_bytes, "a step needs more than its slot holds");
}

bool cpu_value_fits(struct cpu_reader *r, const struct mlo_plan *plan, const struct mlo_value *value,
                    int slot)
{
    size_t bytes;
    if (!cpu_check(r, slot >= 0 && slot < plan->slot_count, "a value is in no slot"))
        return false;
    return cpu_value_bytes(value, &bytes)
               ? cpu_slot_holds(r, plan, slot, bytes)
               : cpu_check(r, plan->slots[slot].kind == CPU_SLOT_TENSOR, "a value has no fixed shape");
}
