#!/bin/bash
# The check of all nodes' annotations that users of HAMi run by hand, with the same commands as in HAMi's debugging guide. Only
# the printed text differs.
# shellcheck disable=SC2086,SC2004

CURRENT_TS=$(date +%s)

for node in $(kubectl get nodes -o jsonpath='{.items[*].metadata.name}'); do
    echo "--- node: $node ---"

    REGISTER=$(kubectl get node $node -o jsonpath='{.metadata.annotations.hami\.io/node-nvidia-register}' 2>/dev/null)
    if [ -z "$REGISTER" ]; then
        echo "  [WARNING] no GPUs registered"
    else
        echo "  [OK] GPUs registered"
    fi

    HANDSHAKE=$(kubectl get node $node -o jsonpath='{.metadata.annotations.hami\.io/node-handshake}' 2>/dev/null)
    if [ -z "$HANDSHAKE" ]; then
        echo "  [WARNING] no handshake"
    else
        DIFF=$((CURRENT_TS - HANDSHAKE))
        if [ $DIFF -gt 300 ]; then
            echo "  [ERROR] handshake is stale (${DIFF}s ago, more than 300s)"
        else
            echo "  [OK] handshake (${DIFF}s ago)"
        fi
    fi

    echo ""
done
