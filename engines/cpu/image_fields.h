/* Private to the files that make and read plans' files. */
#ifndef MLO_ENGINES_CPU_IMAGE_FIELDS_H
#define MLO_ENGINES_CPU_IMAGE_FIELDS_H

#include "engines/cpu/image_impl.h"

#define CPU_IMAGE_MAGIC 0x4e504c4du   /* "MLPN" */
#define CPU_IMAGE_NO_SLOT 0xffffffffu /* a slot that no step needs */

#endif
