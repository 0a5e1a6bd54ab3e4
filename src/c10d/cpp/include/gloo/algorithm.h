// Included by c10d's ProcessGroupGloo.hpp, which needs nothing from it. See context.h.
#pragma once
