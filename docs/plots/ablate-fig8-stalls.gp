set encoding utf8
set terminal svg size 800,500 fixed noenhanced font "DejaVu Sans,Helvetica,Arial,sans-serif,15" background "#ffffff" linewidth 1.2
set border 3 lc rgb "#444444"
set grid ytics lc rgb "#dddddd" lt 1 lw 0.7
set tics nomirror scale 0.5 textcolor rgb "#000000"
set style fill solid 0.85 noborder
set title "Expert uses that waited for a load"
set ylabel "a token"
set xlabel "\n" . " "
set key outside below center horizontal Left reverse samplen 2.5 spacing 1.25 width -6.5
set autoscale xfix
set xrange [-0.6:5.6]
set yrange [0:*]
set xtics nomirror scale 0.5 ("1\ntoken and KV" 0, "2\ntoken only" 1, "3\nKV only" 2, "4\nneither" 3, "5\nrandom" 4, "6\nno prediction" 5)
$series0 << END
0 0.465686275 NaN NaN 
1 0.611111111 NaN NaN 
2 6.23921569 NaN NaN 
3 13.874183 NaN NaN 
4 17.9839869 NaN NaN 
5 24 NaN NaN 
END
$series1 << END
0 2.01797386 NaN NaN 
1 2.01405229 NaN NaN 
2 1.36601307 NaN NaN 
3 0.680718954 NaN NaN 
4 0.496405229 NaN NaN 
5 0 NaN NaN 
END
plot \
	$series0 using ($1 + -0.200000):2:(0.368000) with boxes lc rgb "#0072B2" title "not predicted, or wrongly", \
	$series1 using ($1 + 0.200000):2:(0.368000) with boxes lc rgb "#D55E00" title "predicted, but not there in time"
