// Logging as parts of Ceph do it, into the daemon's log. The list of subsystems is Ceph's: of the
// stores that are built in, the name of the one in memory is borrowed (`debug_memstore`).
#pragma once

#include "common/debug.h"

#define dout_context cct
#define dout_subsys ceph_subsys_memstore
#undef dout_prefix
#define dout_prefix *_dout << "nacre "
