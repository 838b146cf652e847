#include "caliber.h"
