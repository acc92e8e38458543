// Everything an application needs, in one include. Link tersor::tersor.
#pragma once

#include "tersor/base.h"
#include "tersor/cache.h"
#include "tersor/codec.h"
#include "tersor/model.h"
#include "tersor/ops.h"
#include "tersor/text.h"
