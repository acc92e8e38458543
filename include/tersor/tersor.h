// Everything the library offers: codecs, caches attended in compressed form, models, text. Include this one, or the room you need.
#pragma once

#include "tersor/base.h"
#include "tersor/cache.h"
#include "tersor/codec.h"
#include "tersor/model.h"
#include "tersor/ops.h"
#include "tersor/text.h"
