# /etc/profile.d/tachograph.sh: records every training that is started from a login shell. TACHOGRAPH_DISABLED=1: none.
case ":$PYTHONPATH:" in
*:/opt/tachograph/auto:*) ;;
*) export PYTHONPATH="/opt/tachograph/auto${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
